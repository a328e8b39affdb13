"""NUMA nodes of this machine, and loading on some of its cores."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterable
from pathlib import Path

import pandas as pd
from torch.utils.data import DataLoader

from course import rung
from course.data import image_sets

NODES = Path("/sys/devices/system/node")


def numa_nodes(folder: Path = NODES) -> pd.DataFrame:
    """List the machine's NUMA nodes, one row each; none where the system does not show them.

    Columns: cores (their numbers, such as "0-15"), memory_gib.
    """
    rows = {}
    for node in sorted(folder.glob("node[0-9]*"), key=lambda path: int(path.name[4:])):
        size = re.search(r"MemTotal:\s+(\d+) kB", (node / "meminfo").read_text())
        rows[node.name] = {
            "cores": (node / "cpulist").read_text().strip(),
            "memory_gib": int(size[1]) / 2**20 if size else None,
        }
    return pd.DataFrame.from_dict(rows, orient="index", columns=["cores", "memory_gib"])


def load_on_cores(cores: Iterable[int], workers: int = 2) -> None:
    """Load the default set with workers on these cores only, and print the images/s (Linux only).

    The process's own cores are restored at the end.
    """
    images, before = image_sets(rung("baseline", quick=True)).train, os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)  # workers inherit it
    try:
        start = time.perf_counter()
        for _ in DataLoader(images, 32, num_workers=workers):
            pass
        speed = len(images) / (time.perf_counter() - start)
        usable = len(os.sched_getaffinity(0))
    finally:
        os.sched_setaffinity(0, before)
    print(
        f"{workers} workers on {usable} of this machine's cores: {speed:.0f} images/s. "
        f"os.cpu_count() reports {os.cpu_count()} cores."
    )
