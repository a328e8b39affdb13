"""What one core does for a training image, stage by stage, in each format."""

from __future__ import annotations

import tarfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from course.data import default_set
from course.data.formats import convert
from course.data.formats.raw import Raw
from course.data.formats.shards import paths
from course.data.images import RandomCrop, decode_jpeg, one_thread

STAGES = ("read", "decode", "crop and resize")
ROUNDS = 4
Image = torch.Tensor


def costs(images: int = 64, image_px: int = 224, seed: int = 0) -> pd.DataFrame:
    """Milliseconds of one core for a training image of the default set, in each format.

    Each image is made ROUNDS times, and the shortest time of a stage counts, as the one that other
    programs disturbed least; so what is read comes from memory and not from a disk.

    Returns:
        A row a format: "files", "shards", "small", "raw", and "raw, cut out", where a part of the
        right size is cut out and nothing resized. Columns: a stage each of STAGES in ms; ms, their
        sum; images_per_s of one core; kb of an image as it is stored.
    """
    root = default_set.ensure()
    small = convert.convert("small")
    chosen = np.random.default_rng(seed)
    crop, cut = RandomCrop(image_px), _cut_out(image_px)
    raw = Raw(convert.convert("raw"), "train", lambda image: image)
    places = chosen.permutation(len(raw))[:images].tolist()
    files, smaller = (sorted(each.glob("train/[!.]*/[!.]*.jpg")) for each in (root, small))
    shards = paths(convert.convert("shards"), "train")
    trials: dict[str, tuple[Callable[[], Iterator], Callable, Callable]] = {
        "files": (lambda: _files(files, places), decode_jpeg, crop),
        "shards": (lambda: _members(shards, images), decode_jpeg, crop),
        "small": (lambda: _files(smaller, places), decode_jpeg, crop),
        "raw": (lambda: _mapped(raw, places), _as_it_is, crop),
        "raw, cut out": (lambda: _mapped(raw, places), _as_it_is, cut),
    }
    rows = {name: _shortest(*trial, seed=seed) for name, trial in trials.items()}
    table = pd.DataFrame(rows, index=[*STAGES, "kb"]).T.rename_axis("format")
    table["ms"] = table[[*STAGES]].sum(axis=1)
    table["images_per_s"] = 1e3 / table["ms"]
    return table[[*STAGES, "ms", "images_per_s", "kb"]]


def _shortest(
    read: Callable[[], Iterator], decode: Callable, crop: Callable, *, seed: int
) -> list[float]:
    """Of each stage the milliseconds, and the kilobytes that an image has."""
    rounds, sizes = [], []
    with one_thread():
        for _ in range(ROUNDS):
            torch.manual_seed(seed)  # the same crops in every round
            rows, stored = [], read()
            while True:
                begin = time.perf_counter()
                if (data := next(stored, None)) is None:
                    break
                marks = [begin, time.perf_counter()]
                image = decode(data)
                marks.append(time.perf_counter())
                crop(image)
                marks.append(time.perf_counter())
                rows.append(np.diff(marks))
                sizes.append(data.nbytes if isinstance(data, torch.Tensor) else len(data))
            rounds.append(rows)
    return [*(1e3 * np.min(rounds, axis=0).mean(axis=0)), float(np.mean(sizes)) / 1e3]


def _files(files: list[Path], places: list[int]) -> Iterator[bytes]:
    for at in places:
        yield files[at].read_bytes()


def _members(shards: list[Path], images: int) -> Iterator[bytes]:
    left = images
    for shard in shards:
        with tarfile.open(shard, "r|") as members:
            for member in members:
                content = members.extractfile(member).read()
                if member.name.endswith(".jpg"):
                    yield content
                    left -= 1
                    if not left:
                        return


def _mapped(raw: Raw, places: list[int]) -> Iterator[Image]:
    for at in places:
        yield raw[at][0]


def _as_it_is(image: Image) -> Image:
    return image


def _cut_out(image_px: int) -> Callable[[Image], Image]:
    """A random square of the right size: its corner is drawn, and nothing is resized."""

    def cut(image: Image) -> Image:
        height, width = image.shape[1:]
        top = int(torch.randint(max(height - image_px, 0) + 1, ()))
        left = int(torch.randint(max(width - image_px, 0) + 1, ()))
        return image[:, top : top + image_px, left : left + image_px].contiguous()

    return cut
