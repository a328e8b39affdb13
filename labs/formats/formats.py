"""Measure a core's time per image, by format."""

from __future__ import annotations

import tarfile
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from course.data import RandomCrop, decode_jpeg, default_set, formats
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
