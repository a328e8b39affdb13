"""Measure image formats: a core's time per image, its reading speed, and the order of images."""

from __future__ import annotations

import runpy
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from course.data import RandomCrop, decode_jpeg, default_set, formats
from course.runs import PROJECT
from trainspeed import timing

STAGES = ("read", "decode", "crop and resize")


def core_costs(images: int = 64, image_px: int = 224) -> pd.DataFrame:
    """Time what one core does for a training image of the default set, in each format.

    Everything comes from memory, not from a disk.

    Returns:
        One row per format: "files", "shards", "small", "raw", and "raw, cut out", which cuts out a
        part of the right size and resizes nothing. Columns: `STAGES` in ms; ms, their sum;
        images_per_s of one core; kb of an image as it is stored.
    """

    def unchanged(image: torch.Tensor) -> torch.Tensor:
        return image

    def cut_out(image: torch.Tensor) -> torch.Tensor:
        top, left = (int(torch.randint(side - image_px + 1, ())) for side in image.shape[1:])
        return image[:, top : top + image_px, left : left + image_px].contiguous()

    raw = formats.Raw(formats.convert_set("raw"), "train", unchanged)
    shards = formats.paths(formats.convert_set("shards"), "train")
    files, small = (
        _jpeg_files(folder) for folder in (default_set.ensure(), formats.convert_set("small"))
    )
    places = np.random.default_rng(0).permutation(len(raw))[:images].tolist()
    crop = RandomCrop(image_px)
    cases: dict[str, tuple[Callable[[], Iterable[Any]], Callable, Callable]] = {
        "files": (lambda: (files[i].read_bytes() for i in places), decode_jpeg, crop),
        "shards": (lambda: islice(_shard_jpegs(shards), images), decode_jpeg, crop),
        "small": (lambda: (small[i].read_bytes() for i in places), decode_jpeg, crop),
        "raw": (lambda: (raw[i][0] for i in places), unchanged, crop),
        "raw, cut out": (lambda: (raw[i][0] for i in places), unchanged, cut_out),
    }
    rows = {}
    for name, (read, decode, cut) in cases.items():
        kb = np.mean([getattr(data, "nbytes", None) or len(data) for data in read()]) / 1e3
        ms = timing.time_stages(read, (decode, cut)).mean(axis=0)
        values = {"ms": ms.sum(), "images_per_s": 1e3 / ms.sum(), "kb": kb}
        rows[name] = dict(zip(STAGES, ms)) | values
    return pd.DataFrame(rows).T.rename_axis("format")


def _jpeg_files(folder: Path) -> list[Path]:
    return sorted(folder.glob("train/[!.]*/[!.]*.jpg"))


def _shard_jpegs(shards: Iterable[Path]) -> Iterator[bytes]:
    for shard in shards:
        with tarfile.open(shard, "r|") as members:
            for member in members:
                content = members.extractfile(member).read()
                if member.name.endswith(".jpg"):
                    yield content


def shard_members(shard: Path) -> pd.DataFrame:
    """List the first four members of a shard: name, bytes, and where in the file they begin."""
    with tarfile.open(shard) as tar:
        rows = [(member.name, member.size, member.offset_data) for member in islice(tar, 4)]
    return pd.DataFrame(rows, columns=["name", "bytes", "begins_at"])


def reader_speeds(script: str | Path, images: int = 1024) -> pd.DataFrame:
    """Measure how fast one core reads images in three ways, without decoding.

    Everything comes from the page cache after a first pass, so a disk's time is not included.

    Args:
        script: a training script, relative to the project's folder; its class Shards reads.

    Returns:
        One row per way: way, images, images_per_s (of processor time).

    Raises:
        NotImplementedError: TODO shards of the script is still open.
    """
    import webdataset  # only here: it takes a second

    files, shards = (
        _jpeg_files(default_set.ensure()),
        formats.paths(formats.convert_set("shards"), "train"),
    )
    reader = runpy.run_path(str(PROJECT / script), run_name="train")["Shards"]
    images_of = reader.__new__(reader).images_of  # needs no data set
    library = webdataset.WebDataset([str(shard) for shard in shards], shardshuffle=False)
    readers: dict[str, Callable[[], Iterable[Any]]] = {
        "files, one by one": lambda: (path.read_bytes() for path in files),
        "shards, by your reader": lambda: (item for shard in shards for item in images_of(shard)),
        "shards, by webdataset": lambda: library.to_tuple("jpg", "cls"),
    }
    rows = []
    for name, read in readers.items():
        seconds = []
        for _ in range(3):
            begin = time.process_time()
            count = sum(1 for _ in islice(read(), images))
            seconds.append(time.process_time() - begin)
        rows.append((name, count, count / min(seconds[1:])))
    return pd.DataFrame(rows, columns=["way", "images", "images_per_s"])


def epoch_orders(images: int = 4096) -> dict[str, np.ndarray]:
    """Draw the order of images in an epoch, for a true shuffle and for streams of 16 shards.

    Returns:
        By name an array of shape (images,): the place of each image in all shards laid end to
        end, in the order in which one reader yields them.
    """
    random = np.random.default_rng(0)
    shards = np.arange(images).reshape(16, -1)
    by_shard = shards[random.permutation(16)].ravel()
    orders = {"true shuffle": random.permutation(images), "order of shards only": by_shard}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for buffer in (100, 1000):
            order = np.array([*formats.shuffled(iter(by_shard.tolist()), buffer)])
            orders[f"and a buffer of {buffer:,}"] = order
    return orders
