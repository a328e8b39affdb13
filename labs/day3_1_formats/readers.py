"""Reading alone, nothing decoded: files, the learner's way through a tar file, and webdataset's."""

from __future__ import annotations

import runpy
import tarfile
import time
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd

from course.data import default_set
from course.data.formats import convert
from course.data.formats.shards import paths
from course.runs.run import PROJECT


def members(shard: Path, first: int = 4) -> pd.DataFrame:
    """The first members of a shard: name, bytes, and the place in the file where they begin."""
    with tarfile.open(shard) as tar:
        rows = [(each.name, each.size, each.offset_data) for each, _ in zip(tar, range(first))]
    return pd.DataFrame(rows, columns=["name", "bytes", "begins_at"])


def reading(script: str | Path, images: int = 1024) -> pd.DataFrame:
    """Images of the default set read in three ways, per second of one core.

    All comes from memory, where the files lie after a first pass. So this is what reading costs the
    processor, and what a disk takes comes on top.

    Args:
        script: a training script, below the project's folder; its class Shards reads.

    Returns:
        A row a way: way, images, images_per_s (of processor time).

    Raises:
        NotImplementedError: TODO 10 of the script is still open.
    """
    import webdataset  # only here: it takes a second

    reader = runpy.run_path(str(PROJECT / script), run_name="train")["Shards"]
    own = reader.__new__(reader).images_of  # to read, it needs no set
    files = sorted(default_set.ensure().glob("train/[!.]*/[!.]*.jpg"))[:images]
    shards = paths(convert.convert("shards"), "train")
    library = webdataset.WebDataset([str(each) for each in shards], shardshuffle=False)
    ways: dict[str, Callable[[], Iterable[Any]]] = {
        "files, one by one": lambda: (path.read_bytes() for path in files),
        "shards, by your reader": lambda: (each for shard in shards for each in own(shard)),
        "shards, by webdataset": lambda: library.to_tuple("jpg", "cls"),
    }
    rows = []
    for way, read in ways.items():
        seconds = []
        for _ in range(3):
            begin, count = time.process_time(), sum(1 for _ in islice(read(), images))
            seconds.append(time.process_time() - begin)
        rows.append((way, count, count / min(seconds[1:]) if count else 0.0))
    return pd.DataFrame(rows, columns=["way", "images", "images_per_s"])
