"""Images in tar files, hundreds in each, which are read as a stream."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from course.config import Config
from course.data import folders
from course.data.folders import DataError
from course.data.images import decode_image, one_thread

Encoded = tuple[bytes, int]  # an image file's bytes, and its class


def paths(folder: Path, split: str) -> list[Path]:
    """Return the tar files of a split, in a folder from `convert.convert_set("shards")`."""
    parts = folders.index(folder)["splits"][split]["parts"]
    return [folder / name for part in parts for name in part["files"]]


class ShardReader(IterableDataset):
    """Yields training images from tar files without end, pass after pass.

    Each pass reads the shards in a random order. Images go through a buffer, from which a random
    one is taken each time.

    Args:
        sets: from `image_sets`, for format="shards".
        rank, world_size: of this process.
    """

    def __init__(self, sets: Any, cfg: Config, rank: int = 0, world_size: int = 1) -> None:
        self.shards, self.transform = [*sets.shards], sets.train.transform
        self.buffer, self.rank, self.world_size = cfg.shuffle_buffer, rank, world_size

    def images_of(self, shard: Path) -> Iterator[Encoded]:
        """Yield the images of one shard in order: the JPEG file's bytes, and the class."""
        raise NotImplementedError(
            "a reader must define `images_of`, which yields the images of a shard"
        )

    def worker_shards(self) -> list[Path]:
        """Return the shards of this reader; each worker of each rank has one reader."""
        return self.shards

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        if not self.shards:
            raise DataError('there are no shards: use this reader only if cfg.format == "shards"')
        shards = self.worker_shards()
        if not shards:
            raise DataError(
                f"{len(self.shards)} shards are too few for all workers of {self.world_size} "
                f"rank(s): take fewer workers, so that each has a shard to read"
            )
        while True:
            for (jpeg, label), place in shuffled(self._read_once(shards), self.buffer):
                yield self._decode(jpeg, place), label

    def _read_once(self, shards: list[Path]) -> Iterator[tuple[Encoded, str]]:
        """Yield all images, each with its shard and number for error messages."""
        images = 0
        for index in torch.randperm(len(shards)).tolist():
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


def shuffled(stream: Iterator[Any], buffer: int) -> Iterator[Any]:
    """Shuffle a stream with a buffer: each new item replaces a random one, which is yielded.

    It uses PyTorch's random numbers, which differ between workers.
    """
    items: list[Any] = []
    for item in stream:
        if len(items) < buffer:
            items.append(item)
            continue
        index = int(torch.randint(len(items) + 1, ()))
        if index < len(items):
            item, items[index] = items[index], item
        yield item
    yield from (items[index] for index in torch.randperm(len(items)).tolist())
