"""The memory and cores that this process may use: the machine's, or those of its container or job.

Linux limits containers and Slurm's jobs by control groups. psutil and os.cpu_count only report
what the machine has.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

GIB = 2**30
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")
# Of version 2, then 1: the files with a group's limit and use.
MEMORY_FILES = (
    ("memory.max", "memory.current"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
)
# Memory that the kernel takes back when it needs some; version 1 has total_ for a group's children.
PAGE_CACHE = re.compile(r"^(total_)?(?:in)?active_file (\d+)$", re.MULTILINE)


def memory_bytes() -> tuple[int, int]:
    """Return the total memory and the free memory, in bytes."""
    machine = psutil.virtual_memory()
    total, free = machine.total, machine.available
    for group in _groups("memory"):
        for names in MEMORY_FILES:
            with suppress(OSError, ValueError):  # a different version, or "max": no limit
                limit, used = (int((group / name).read_text()) for name in names)
                rows = PAGE_CACHE.findall((group / "memory.stat").read_text())
                sizes = [int(size) for prefix, size in rows if prefix] or [int(n) for _, n in rows]
                total, free = min(total, limit), min(free, limit - used + sum(sizes))
    return total, max(0, free)


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use; a job may have only some."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def core_count() -> int:
    """Return how many cores this process may keep busy: a container may have part of their time."""
    count = len(usable_cores())
    for group in _groups("cpu"):
        with suppress(OSError, ValueError):  # a different version, or "max": no limit
            quota, period = map(int, (group / "cpu.max").read_text().split())
            count = min(count, math.ceil(quota / period))
        with suppress(OSError):
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            quota, period = (int((group / name).read_text()) for name in names)
            count = min(count, math.ceil(quota / period)) if quota > 0 else count
    return max(1, count)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit PyTorch to one thread in this context."""
    import torch  # which commands start without

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _groups(controller: str) -> Iterator[Path]:
    """Yield this process's group and those above it, each of which may have a lower limit.

    In a container, the folder of the group may be missing; then the uppermost one is the group.
    """
    with suppress(OSError):  # no Linux
        for line in OWN_GROUPS.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and controller not in controllers.split(","):
                continue
            top = GROUPS / controller if controllers else GROUPS
            group = top / path.lstrip("/")
            yield from (group, *(p for p in group.parents if p.is_relative_to(top)))
