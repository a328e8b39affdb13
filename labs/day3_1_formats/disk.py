"""What reading costs: a file's opening, and a disk's bytes, cold and warm, jumping and in order."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pandas as pd

IMAGENET = 1_281_167  # training images, each a file
SHARD_IMAGES = 1_250  # so that ImageNet makes about a thousand shards
KB = 1000
MB = 1e6
ROUNDS = 3


def opening(
    latencies_ms: Iterable[float], images: int = IMAGENET, shard_images: int = SHARD_IMAGES
) -> pd.DataFrame:
    """What opening files costs one reader in a pass over a set, as files and as shards.

    Index: latency_ms, of one open. Columns: files_min and shards_min, minutes of a pass.

    Raises:
        ValueError: a latency below zero.
    """
    rows = {}
    for latency in latencies_ms:
        if latency < 0:
            raise ValueError(f"a latency of {latency} ms: it must be 0 or more")
        minutes = latency / 1e3 / 60
        shards = -(-images // shard_images)
        rows[latency] = {"files_min": images * minutes, "shards_min": shards * minutes}
    return pd.DataFrame(rows).T.rename_axis("latency_ms")


def measure_disk(folder: Path, files: int = 256, kb: int = 110, seed: int = 0) -> pd.DataFrame:
    """Read as many bytes as so many images have, from the disk of a folder, in three ways.

    The bytes are written there first, and taken away at the end. For "cold" the system is asked to
    forget them (`posix_fadvise`), which macOS cannot and a disk in memory does not; other caches,
    those of a file server for instance, stay as they are.

    Returns:
        A row a way and cache: way ("files, in random order", "one file, random places",
        "one file, from the beginning"), cache ("cold" or "warm"), ms (of an image, the median of
        ROUNDS), images_per_s, mb_per_s. Cold rows are missing where nothing can be forgotten.

    Raises:
        OSError: there is no room, or no right to write.
    """
    folder.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix=".disk-", dir=folder))
    try:
        random = np.random.default_rng(seed)
        small, large = _written(place, files, kb * KB, random)
        order = random.permutation(files)
        ways: dict[str, Callable[[], None]] = {
            "files, in random order": lambda: [small[at].read_bytes() for at in order],
            "one file, random places": lambda: _jump(large, order * kb * KB, kb * KB),
            "one file, from the beginning": lambda: _jump(large, [None] * files, kb * KB),
        }
        seconds: dict[tuple[str, str], list[float]] = {}
        for _ in range(ROUNDS):  # in turns: what else uses the disk meets all of them
            for way, read in ways.items():
                for cache in ("cold", "warm"):
                    if cache == "cold" and not _forget([*small, large]):
                        continue
                    begin = time.perf_counter()
                    read()
                    seconds.setdefault((way, cache), []).append(time.perf_counter() - begin)
        rows = [(*key, *_speeds(np.median(each) / files, kb)) for key, each in seconds.items()]
        return pd.DataFrame(rows, columns=["way", "cache", "ms", "images_per_s", "mb_per_s"])
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _speeds(seconds: float, kb: int) -> tuple[float, float, float]:
    return 1e3 * seconds, 1 / seconds, kb * KB / MB / seconds


def _written(
    place: Path, files: int, size: int, random: np.random.Generator
) -> tuple[list[Path], Path]:
    """Small files, and a large one with the bytes of all; on the disk when this returns."""
    small, large = [place / f"{number:05d}" for number in range(files)], place / "all"
    with large.open("wb") as joined:
        for path in small:
            content = random.bytes(size)
            joined.write(content)
            with path.open("wb") as file:
                file.write(content)
                os.fsync(file.fileno())  # what waits to be written is not forgotten
        joined.flush()
        os.fsync(joined.fileno())
    return small, large


def _jump(path: Path, places: Iterable[int | None], size: int) -> None:
    """Read so many bytes at each place; None: where the last ones ended."""
    with path.open("rb") as file:
        for place in places:
            if place is not None:
                file.seek(int(place))
            file.read(size)


def _forget(paths: Iterable[Path]) -> bool:
    """Ask the system to drop files from its memory; False where it has no such call."""
    if not hasattr(os, "posix_fadvise"):
        return False
    for path in paths:
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return True
