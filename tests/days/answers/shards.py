"""TODO 10 and 11: readers of shards as learners may write them."""

from answers.lines import Answer

YIELD = "                    yield jpeg, int(content)"
OPEN = '        with tarfile.open(shard, "r|") as members:'
LOOP = "            for member in members:"
READ = "                content = members.extractfile(member).read()"
SLICE = "        return self.shards[self.rank * workers + number :: self.world_size * workers]"

WRONG = {
    "one class for all images": Answer(
        todo=10,
        edits={YIELD: "                    yield jpeg, 0"},
        why="The loss falls quickly, since one answer is always right.",
        said=r"images come with another one's class",
    ),
    "the first image of a shard": Answer(
        todo=10,
        edits={YIELD: YIELD + "\n                    break"},
        why="Leaves the loop after one image: an epoch shows a few images again and again.",
        said=r"a pass misses \d+ of 24 images",
    ),
    "each image twice": Answer(
        todo=10,
        edits={YIELD: YIELD + "\n" + YIELD},
        why="As a loop over all members does that yields at each of them.",
        said=r"a pass misses \d+ of 24 images, and gives others twice",
    ),
    "ranks read the same shards": Answer(
        todo=11,
        edits={SLICE: "        return self.shards[number::workers]"},
        why="Only the workers of a rank share: two ranks train on the same images.",
        said=r"two ranks read the same images: self\.rank",
    ),
    "workers read the same shards": Answer(
        todo=11,
        edits={SLICE: "        return self.shards[self.rank :: self.world_size]"},
        why="Only the ranks share: each worker of one reads all of its shards.",
        said=r"two workers of a rank read the same images: get_worker_info",
    ),
    "its first shard only": Answer(
        todo=11,
        edits={SLICE: SLICE + "[:1]"},
        why="Each reader takes one shard, and those that are left nobody reads.",
        said=r"a pass misses 21 of 24 images",
    ),
}
RIGHT = {
    "opens the tar file for jumping": Answer(
        todo=10,
        edits={
            OPEN: "        with tarfile.open(shard) as members:",
            LOOP: "            for member in members.getmembers():",
        },
        why="Reads all headers first, and then jumps: right, and slower on a disk that turns.",
    ),
    "blocks of shards": Answer(
        todo=11,
        edits={
            SLICE: """\
        reader, readers = self.rank * workers + number, self.world_size * workers
        return self.shards[
            len(self.shards) * reader // readers : len(self.shards) * (reader + 1) // readers
        ]"""
        },
        why="Neighbouring shards go to one reader instead of every so many-th.",
    ),
    "workers first, then ranks": Answer(
        todo=11,
        edits={SLICE: "        return self.shards[self.rank :: self.world_size][number::workers]"},
        why="As WebDataset has it: nodes share, then the workers of each.",
    ),
}
