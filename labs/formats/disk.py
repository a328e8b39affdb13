"""Measure what reading costs: a disk's bytes in three orders, and a recorded shared file system."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pandas as pd

IMAGENET = 1_281_167  # training images, a file each
SHARD_IMAGES = 1_250  # so that ImageNet fits into about a thousand shards
ROUNDS = 3
RECORDED = Path(__file__).with_name("shared_files.jsonl")


def shared_files() -> pd.DataFrame:
    """Return the speed of one reader over a network, as research/shared_files.py recorded it.

    Returns:
        One row per way to store the images, the index. Columns: attributes, opens, reads, closes
        (requests per image), kb, request_ms (of one request), images_per_s, local_images_per_s
        (from memory), machine, date.
    """
    table = pd.read_json(RECORDED, lines=True, convert_dates=False, precise_float=True)
    return table.set_index("way").drop(columns=["plan", "torch", "command"])


def measure_disk(folder: Path, files: int = 256, kb: int = 110) -> pd.DataFrame:
    """Read the bytes of some images from the disk of a folder, in three ways.

    The bytes are written first and deleted at the end. Before a "cold" read, the system is
    requested to drop them from its cache (`posix_fadvise`), which macOS doesn't support and a disk
    in memory ignores. Other caches, for instance of a file server, stay as they are.

    Returns:
        One row per way and cache: way ("files, in random order", "one file, random places",
        "one file, from the beginning"), cache ("cold" or "warm"), ms (of an image, the median of
        ROUNDS), images_per_s, mb_per_s. macOS has no cold rows.

    Raises:
        OSError: the disk is full or cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    size, random = kb * 1000, np.random.default_rng(0)
    with TemporaryDirectory(prefix=".disk-", dir=folder) as place:
        small, large = [Path(place, f"{i:05d}") for i in range(files)], Path(place, "all")
        for path in small:
            _write_to_disk(path, random.bytes(size))
        _write_to_disk(large, b"".join(path.read_bytes() for path in small))
        order = random.permutation(files)
        readers = {
            "files, in random order": lambda: [small[i].read_bytes() for i in order],
            "one file, random places": lambda: _read_at(large, order * size, size),
            "one file, from the beginning": lambda: _read_at(large, np.arange(files) * size, size),
        }
        rows = []
        for _ in range(ROUNDS):  # in turns, so that other programs disturb all of them
            for way, read in readers.items():
                for cache in ("cold", "warm") if hasattr(os, "posix_fadvise") else ("warm",):
                    if cache == "cold":
                        _drop_from_cache([*small, large])
                    begin = time.perf_counter()
                    read()
                    rows.append((way, cache, 1e3 * (time.perf_counter() - begin) / files))
    table = pd.DataFrame(rows, columns=["way", "cache", "ms"])
    table = table.groupby(["way", "cache"], sort=False)["ms"].median().reset_index()
    return table.assign(images_per_s=1e3 / table["ms"], mb_per_s=kb / table["ms"])


def _write_to_disk(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())  # the cache only drops what is on the disk


def _read_at(path: Path, places: Iterable[int], size: int) -> None:
    with path.open("rb") as file:
        for place in places:
            file.seek(int(place))
            file.read(size)


def _drop_from_cache(paths: Iterable[Path]) -> None:
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
