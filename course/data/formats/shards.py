"""Images in tar files, hundreds in each, which are read as a stream."""

from __future__ import annotations

import multiprocessing
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from course.config import Config
from course.data import folders
from course.data.folders import DataError
from course.data.images import decode_image
from course.data.seeded import seed_of, seeded
from trainspeed.resources import one_thread

Encoded = tuple[bytes, int]  # an image file's bytes, and its class


def paths(folder: Path, split: str) -> list[Path]:
    """Return the tar files of a split, in a folder from `convert.convert_set("shards")`."""
    parts = folders.index(folder)["splits"][split]["parts"]
    return [folder / name for part in parts for name in part["files"]]


class ShardReader(IterableDataset):
    """Yields training images from tar files without end, pass after pass.

    Each pass reads the shards in a random order. Images go through a buffer, from which a random
    one is taken each time. Order and crops depend only on seed, epoch, rank and worker.

    Args:
        sets: from `image_sets`, for format="shards".
        rank, world_size: of this process.
    """

    def __init__(self, sets: Any, cfg: Config, rank: int = 0, world_size: int = 1) -> None:
        self.shards, self.transform = [*sets.shards[rank::world_size]], sets.train.transform
        self.buffer, self.rank, self.world_size = cfg.shuffle_buffer, rank, world_size
        self.seed, self.count, self.total = cfg.seed, len(sets.train), len(sets.shards)
        # The next epoch, and the images that each worker leaves out: also for persistent workers.
        self._begin = multiprocessing.RawArray("q", 2)

    def images_of(self, shard: Path) -> Iterator[Encoded]:
        """Yield the images of one shard in order: the JPEG file's bytes, and the class."""
        raise NotImplementedError(
            "a reader must define `images_of`, which yields the images of a shard"
        )

    def worker_shards(self) -> list[Path]:
        """Return those of this rank's shards that this worker reads; each has a reader."""
        return self.shards

    def set_epoch(self, epoch: int) -> None:
        """Choose a different order and different crops; call it before the epoch begins."""
        self._begin[0] = epoch

    def skip(self, images: int) -> None:
        """Let each worker read its first images of the next epoch without decoding them."""
        self._begin[1] = images

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        if not self.total:
            raise DataError('there are no shards: use this reader only if cfg.format == "shards"')
        shards = self.worker_shards()
        if not shards:
            raise DataError(
                f"{self.total} shards are too few for all workers of {self.world_size} "
                f"rank(s): take fewer workers, so that each has a shard to read"
            )
        (epoch, skip), worker = self._begin, get_worker_info()
        place = (self.seed, epoch, self.rank, worker.id if worker else 0)
        random = torch.Generator().manual_seed(seed_of(*place))
        for number, ((jpeg, label), name) in enumerate(self._read(shards, random)):
            if number >= skip:
                with seeded(*place, number):
                    image = self._decode(jpeg, name)
                yield image, label

    def _read(self, shards: list[Path], random: torch.Generator) -> Iterator[tuple[Encoded, str]]:
        """Yield images without end, pass after pass."""
        while True:
            yield from shuffled(self._read_once(shards, random), self.buffer, random)

    def _read_once(
        self, shards: list[Path], random: torch.Generator
    ) -> Iterator[tuple[Encoded, str]]:
        """Yield all images, each with its shard and number for error messages."""
        images = 0
        for index in torch.randperm(len(shards), generator=random).tolist():
            try:
                for number, encoded in enumerate(self.images_of(shards[index])):
                    images += 1
                    yield encoded, f"{shards[index]}, image {number}"
            except (tarfile.TarError, OSError) as error:
                raise DataError(f"{shards[index]} cannot be read: {error}") from error
        if not images:  # or it would read empty shards forever
            raise DataError(
                f"no image came out of {len(shards)} shards: what does images_of yield?"
            )

    def _decode(self, jpeg: bytes, place: str) -> torch.Tensor:
        with one_thread():
            try:
                image = decode_image(jpeg)
            except OSError as error:
                raise DataError(
                    f"{place}, cannot be decoded ({error}): run course data --as shards again"
                ) from error
            return self.transform(image)


class ShardLoader(DataLoader):
    """Loads batches of a `ShardReader`, and can begin within an epoch.

    Attributes:
        skip: the next epoch leaves out this number of images.
    """

    skip = 0

    def __iter__(self) -> Iterator[Any]:
        # Workers take turns, so each has read the same number of batches, or one more. The first
        # ones of the next round are loaded again, so that the round begins with worker 0.
        rounds, rest = divmod(self.skip // self.batch_size, max(1, self.num_workers))
        self.dataset.skip(rounds * self.batch_size)
        self.skip, batches = 0, super().__iter__()
        for _ in range(rest):
            next(batches)
        return batches


def shuffled(
    stream: Iterator[Any], buffer: int, random: torch.Generator | None = None
) -> Iterator[Any]:
    """Shuffle a stream with a buffer: each new item replaces a random one, which is yielded."""
    items: list[Any] = []
    for item in stream:
        if len(items) < buffer:
            items.append(item)
            continue
        index = int(torch.randint(len(items) + 1, (), generator=random))
        if index < len(items):
            item, items[index] = items[index], item
        yield item
    yield from (items[index] for index in torch.randperm(len(items), generator=random).tolist())
