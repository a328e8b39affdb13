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
        said=r"a pass misses \d+ of 39 images",
    ),
    "each image twice": Answer(
        todo=10,
        edits={YIELD: YIELD + "\n" + YIELD},
        why="As a loop over all members does that yields at each of them.",
        said=r"a pass misses \d+ of 39 images, and gives others twice",
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
        said=r"a pass misses 36 of 39 images",
    ),
    "one class as text": Answer(
        todo=10,
        edits={YIELD: "                    yield jpeg, content.decode()"},
        why="Forgets int(…): the batch's classes would be a tuple of texts.",
        said=r"a class is a str, not an int: int\(content\)",
    ),
    "waits for another suffix": Answer(
        todo=10,
        edits={
            YIELD: "                    if not jpeg:\n    " + YIELD,
        },
        why="Yields nothing, for instance since a name never ends as expected.",
        said=r"DataError: no image came out of 13 shards",
    ),
    "sums rank and worker": Answer(
        todo=11,
        edits={SLICE: SLICE.replace("self.rank * workers + number", "self.rank + number")},
        why="Worker 1 of rank 0 and worker 0 of rank 1 have one number.",
        said=r"two ranks read the same images",
    ),
    "multiplies by the ranks": Answer(
        todo=11,
        edits={SLICE: SLICE.replace("self.rank * workers", "self.rank * self.world_size")},
        why="Right by chance where there are as many workers as ranks.",
        said=r"two ranks read the same images",
    ),
    "leaves the rest": Answer(
        todo=11,
        edits={
            SLICE: """\
        each = len(self.shards) // (self.world_size * workers)
        first = (self.rank * workers + number) * each
        return self.shards[first : first + each]"""
        },
        why="What does not divide evenly nobody ever reads.",
        said=r"nobody reads 3 of 39 images: take what is left, too",
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
