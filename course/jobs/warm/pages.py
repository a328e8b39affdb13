"""Pages of a process's memory, and what a fork makes of them.

Those of files it maps anew, one by one, as it comes to them. So the peak of a fork's resident size
would be lower than that of a new process, by what libraries have touched while they were imported:
a quarter of a GiB for PyTorch. Of all others a fork copies the entries, a hundred thousand, and
drops them as it ends, which takes longer than anything else that it does: so they are joined.
"""

from __future__ import annotations

import ctypes
import mmap
import re
from itertools import pairwise
from pathlib import Path

import numpy as np

MADV_POPULATE_READ = 22  # Linux 5.14
MADV_COLLAPSE = 25  # Linux 6.1
LARGE = 1 << 21  # bytes of a page that 512 are joined to
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
    _advise(stretches, MADV_POPULATE_READ)


def join() -> None:
    """Have large pages for what lies in this process's memory and in no file, where it may be."""
    own = re.compile(r"(\w+)-(\w+) rw-p \w+ 00:00 0 *(\[heap\])?")
    stretches = []
    for area in filter(None, map(own.fullmatch, Path("/proc/self/maps").read_text().splitlines())):
        begin, end = -(-int(area[1], 16) // LARGE) * LARGE, int(area[2], 16) // LARGE * LARGE
        stretches += [(begin, end - begin)] * (begin < end)
    _advise(stretches, MADV_COLLAPSE)


def _advise(stretches: list[tuple[int, int]], what: int) -> None:
    madvise = ctypes.CDLL(None).madvise
    for at, count in stretches:
        madvise(ctypes.c_void_p(at), ctypes.c_size_t(count), what)
