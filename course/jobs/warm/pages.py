"""Pages of files in a process's memory: a fork maps them anew, one by one, as it comes to them.

So the peak of a fork's resident size would be lower than that of a new process, by what libraries
have touched while they were imported: a quarter of a GiB for PyTorch.
"""

from __future__ import annotations

import ctypes
import mmap
from itertools import pairwise
from pathlib import Path

import numpy as np

MADV_POPULATE_READ = 22  # Linux 5.14
IS_FILE, PRESENT = 1 << 61, 1 << 63  # bits of an entry in /proc/PID/pagemap


def of_files() -> list[tuple[int, int]]:
    """Where pages of files lie in this process's memory: address and bytes of each stretch."""
    stretches = []
    with open("/proc/self/pagemap", "rb", buffering=0) as pagemap:
        for line in Path("/proc/self/maps").read_text().splitlines():
            area, _, _, _, _, *path = line.split(maxsplit=5)
            if path and path[0].startswith("/"):
                begin, end = (int(each, 16) // mmap.PAGESIZE for each in area.split("-"))
                pagemap.seek(8 * begin)
                entries = np.frombuffer(pagemap.read(8 * (end - begin)), np.uint64)
                there = entries & np.uint64(IS_FILE | PRESENT) == np.uint64(IS_FILE | PRESENT)
                stretches += [(begin + at, count) for at, count in _stretches(there)]
    return [(at * mmap.PAGESIZE, count * mmap.PAGESIZE) for at, count in stretches]


def _stretches(there: np.ndarray) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([False], there, [False])).astype(np.int8)))
    return [(begin, end - begin) for begin, end in pairwise(edges.tolist())][::2]


def map_again(stretches: list[tuple[int, int]]) -> None:
    """Map these pages in this fork too, where the kernel can; what it cannot comes by and by."""
    madvise = ctypes.CDLL(None).madvise
    for at, count in stretches:
        madvise(ctypes.c_void_p(at), ctypes.c_size_t(count), MADV_POPULATE_READ)
