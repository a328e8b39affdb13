"""Images that lie in tar files, hundreds in each: they are read as a stream, in no random order."""

from __future__ import annotations

import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import IterableDataset

from course.config import Config
from course.data.default_set import DataError
from course.data.formats import convert
from course.data.images import one_thread, opened

Encoded = tuple[bytes, int]  # an image as it was stored, and its class


def paths(folder: Path, split: str) -> list[Path]:
    """The tar files of a split, in a folder that `convert.convert("shards")` gave.

    Raises:
        DataError: one of them is gone, or has another size; the message names it.
    """
    found = []
    for part in convert.index(folder, "shards")["splits"][split]["parts"]:
        for name, about in part["files"].items():
            path = folder / name
            if not path.is_file() or path.stat().st_size != about["bytes"]:
                raise DataError(f"{path} is gone or cut off: run course data --as shards again")
            found.append(path)
    return found


class ShardReader(IterableDataset):
    """Training images of tar files, without end: after a pass over them comes the next one.

    Each pass takes the reader's shards in a random order. Images come through a buffer, out of
    which a random one goes to the network.

    Args:
        sets: what `image_sets` gave for format="shards".
        rank, world_size: which of how many processes trains on them.
    """

    def __init__(self, sets: Any, cfg: Config, rank: int = 0, world_size: int = 1) -> None:
        self.shards, self.transform = [*sets.shards], sets.train.transform
        self.buffer, self.rank, self.world_size = cfg.shuffle_buffer, rank, world_size

    def images_of(self, shard: Path) -> Iterator[Encoded]:
        """The images of one shard as they lie: bytes of the JPEG file, and the class."""
        raise NotImplementedError("a reader must say how images come out of a shard: images_of")

    def own_shards(self) -> list[Path]:
        """Those that this reader takes; there is one for each worker of each rank."""
        return self.shards

    def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
        own = self.own_shards()
        if not own:
            raise DataError(
                f"{len(self.shards)} shards are too few for all workers of {self.world_size} "
                f"rank(s): take fewer workers, so that each has a shard to read"
            )
        while True:
            for (jpeg, label), place in shuffled(self._pass(own), self.buffer):
                yield self._made(jpeg, place), label

    def _pass(self, own: list[Path]) -> Iterator[tuple[Encoded, str]]:
        """The images of a pass, and where each is: its shard, and its number there."""
        images = 0
        for at in torch.randperm(len(own)).tolist():
            try:
                for number, encoded in enumerate(self.images_of(own[at])):
                    images += 1
                    yield encoded, f"{own[at]}, image {number}"
            except (tarfile.TarError, OSError) as error:
                raise DataError(f"{own[at]} cannot be read: {error}") from error
        if not images:  # or the next pass would be as empty, without end
            raise DataError(f"no image came out of {len(own)} shards: what does images_of yield?")

    def _made(self, jpeg: bytes, place: str) -> torch.Tensor:
        with one_thread():
            try:
                image = opened(jpeg)
            except OSError as error:
                raise DataError(
                    f"{place}, cannot be decoded ({error}): run course data --as shards again"
                ) from error
            return self.transform(image)


def shuffled(stream: Iterator[Any], buffer: int) -> Iterator[Any]:
    """The stream through a buffer of so many: each time a random one goes out, the next comes in.

    Random numbers are PyTorch's, of which each worker has its own.
    """
    kept: list[Any] = []
    for item in stream:
        if len(kept) < buffer:
            kept.append(item)
            continue
        at = int(torch.randint(len(kept) + 1, ()))
        if at < len(kept):
            item, kept[at] = kept[at], item
        yield item
    yield from (kept[at] for at in torch.randperm(len(kept)).tolist())
