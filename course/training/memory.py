"""Memory in GiB: what a run took at its peak, and is allowed to take."""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course.config import GIB

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt
RESERVE_GIB = 0.5  # above a ceiling on a CPU, for one layer's own requests; see `limit`
MADV_POPULATE_READ, MADV_COLLAPSE = 22, 25  # Linux 5.14 and 6.1
LARGE = 2**21  # bytes of a large page
FULL = 7 / 8  # of a large page, so that it takes hardly more memory than its small ones
IS_FILE, PRESENT = np.uint64(1 << 61), np.uint64(1 << 63)  # bits of an entry in /proc/PID/pagemap
# Of a fork: where pages of files, such as libraries, lay in the process that it was forked from.
# It maps them anew as it comes to them; imports, which it took over, have come to a quarter of a
# GiB. To map them all at its start would take a fork longer than to be forked.
taken_over: list[tuple[int, int]] = []  # address and bytes of each stretch


def limit(device: torch.device, gib: float) -> None:
    """Give this process at most so many GiB; above them it runs out of memory. 0: no limit.

    A GPU's allocator keeps the limit itself. On a CPU, where nothing does until the machine
    is in trouble, the process's peak resident size (what `peak` reports) is looked at before
    each layer's forward and each update, and a MemoryError raised once it is above. On Linux the
    system also refuses to hand out more than RESERVE_GIB above the limit, so that one large
    request fails as a request. The reserve is there because oneDNN does not check each of its
    own: at a hard limit, backward ended about once in a hundred times by a segmentation fault.

    Raises:
        ValueError: a device without such limits, or a limit below what is taken already.
    """
    if gib == 0:
        return
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        fraction = gib * GIB / torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(fraction, 1.0), index)
        return
    if device.type != "cpu":
        raise ValueError(f"memory_gib={gib:g}: {device.type} keeps no limit; cuda and cpu do")
    _map_taken_over()  # the peak, which is looked at often, is then the system's own figure
    taken = peak(device)["peak_gib"]
    if taken >= gib:
        raise ValueError(
            f"memory_gib={gib:g}: this process took {taken:.2f} GiB before its first step "
            f"(libraries, weights); allow more"
        )
    _watch(device, gib)
    if sys.platform == "linux":
        most = _data_bytes() + int((gib - taken + RESERVE_GIB) * GIB)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def _watch(device: torch.device, gib: float) -> None:
    def look(owner: Any, *_: Any) -> None:
        taken = peak(device)["peak_gib"]
        if taken > gib:
            raise MemoryError(
                f"{type(owner).__name__}: the process has taken {taken:.2f} GiB, and "
                f"memory_gib={gib:g} is its limit"
            )

    register_module_forward_pre_hook(look)
    register_optimizer_step_pre_hook(look)


def _data_bytes() -> int:
    """What RLIMIT_DATA counts: private memory that can be written to, as in proc(5)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmData:"))


def total_gib(device: torch.device) -> float:
    """All the memory that a device has; of a CPU, and where a GPU shares it, this machine's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / GIB
    return psutil.virtual_memory().total / GIB


def keep_freed() -> None:
    """Let this process use memory that it has freed for its next step, in large pages (Linux).

    By default glibc gives large blocks back at once and has each of their pages handed out anew
    in every step, more in one process than in its equal; and which pages those are decides how
    fast an optimizer that reads all weights gets through them. A variable THP_MEM_ALLOC_ENABLE
    that is set stays as it is.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch reads it when memory is needed


def reset_peak(device: torch.device) -> None:
    """Start a new measurement of the peak, where the device keeps one."""
    if device.type not in ("cpu", "mps"):
        torch.accelerator.reset_peak_memory_stats(device)


def peak(device: torch.device) -> dict[str, float | str | None]:
    """The peak since `reset_peak`: peak_gib, reserved_gib, and memory_kind, what was counted.

    On an accelerator: the tensors of PyTorch's allocator, and what it reserved from the
    device for them. On a CPU there is no such allocator to ask, so it is the process's peak
    resident size, libraries included (some 0.5 GiB before the first tensor): those of a fork as
    well to which it has not come yet. (Where the system has taken such pages back, for want of
    memory, they count twice.)
    """
    if device.type == "cpu":
        unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes on macOS, else KiB
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit + _missing_bytes()
        kind = "process, resident"
        return {"peak_gib": resident / GIB, "reserved_gib": None, "memory_kind": kind}
    if device.type == "mps":  # Metal's allocator keeps no peak
        held = torch.mps.driver_allocated_memory() / GIB
        return {"peak_gib": held, "reserved_gib": None, "memory_kind": "driver, at the end"}
    return {
        "peak_gib": torch.accelerator.max_memory_allocated(device) / GIB,
        "reserved_gib": torch.accelerator.max_memory_reserved(device) / GIB,
        "memory_kind": "device allocator",
    }


def of_files() -> list[tuple[int, int]]:
    """Where pages of files lie in this process's memory: address and bytes of each stretch."""
    stretches = []
    for begin, end, _, path in _areas():
        if path.startswith("/"):
            there = _pages([(begin, end - begin)]) & (IS_FILE | PRESENT) == IS_FILE | PRESENT
            steps = np.flatnonzero(np.diff(np.concatenate(([0], there.astype(np.int8), [0]))))
            edges = begin + mmap.PAGESIZE * steps
            stretches += [(at, to - at) for at, to in [*pairwise(edges.tolist())][::2]]
    return stretches


def _areas() -> Iterator[tuple[int, int, str, str]]:
    """This process's memory: first and last address, rights, and the file it is of, or none."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        area, rights, _, _, _, *path = line.split(maxsplit=5)
        begin, end = (int(each, 16) for each in area.split("-"))
        yield begin, end, rights, path[0] if path else ""


def into_large_pages() -> None:
    """Put what imports have made into large pages, where the kernel can: forking takes a third."""
    madvise = ctypes.CDLL(None).madvise
    for begin, end, rights, path in _areas():
        if not rights.startswith("rw") or path not in ("", "[heap]"):
            continue
        for at in range(-(-begin // LARGE) * LARGE, end - LARGE + 1, LARGE):
            if np.mean(_pages([(at, LARGE)]) & PRESENT != 0) >= FULL:
                madvise(ctypes.c_void_p(at), ctypes.c_size_t(LARGE), MADV_COLLAPSE)


def _pages(stretches: list[tuple[int, int]]) -> np.ndarray:
    """What the system tells of each page there."""
    size = mmap.PAGESIZE // 8  # an entry has eight bytes
    pagemap = os.open("/proc/self/pagemap", os.O_RDONLY)
    try:
        found = [os.pread(pagemap, n // size, at // size) for at, n in stretches]
    finally:
        os.close(pagemap)
    return np.frombuffer(b"".join(found), np.uint64)


def _missing_bytes() -> int:
    """Of what was taken over, that which this process has not come to yet."""
    if not taken_over:
        return 0
    return int(np.count_nonzero(_pages(taken_over) & PRESENT == 0)) * mmap.PAGESIZE


def _map_taken_over() -> None:
    """Come to all of it, where the kernel can; what it cannot is still counted as missing."""
    madvise = ctypes.CDLL(None).madvise
    taken_over[:] = [
        (at, count)
        for at, count in taken_over
        if madvise(ctypes.c_void_p(at), ctypes.c_size_t(count), MADV_POPULATE_READ)
    ]


def host_gib() -> float:
    """GiB of host memory that this process and those it started, DataLoader workers, hold now.

    It is what the system cannot take back: on Linux this process's anonymous pages, also those that
    it shares with the one that it was forked from, those that its workers have for themselves, and
    batches in /dev/shm, each once, on their way or not. Code of libraries, which comes from files,
    is not counted. Elsewhere it is what each process has for itself.
    """
    first = psutil.Process()
    held, waiting, mapped = 0, {}, set()
    for process in [first, *first.children(recursive=True)]:
        try:
            if sys.platform != "linux":
                held += process.memory_full_info().uss
                continue
            held += _held_bytes(process, is_first=process == first)
            waiting |= _shared_files(process.pid)
            mapped |= _mapped_files(process.pid)
        except (psutil.Error, OSError):  # it ended meanwhile
            continue
    return (held + sum(waiting[each] for each in waiting.keys() - mapped)) / GIB


def _held_bytes(process: psutil.Process, *, is_first: bool) -> int:
    """Its pages that no file stands behind, and its part of the batches: proc(5), smaps."""
    if is_first:
        told = Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()
        kinds = ("Anonymous:", "Pss_Shmem:")
        return sum(int(line.split()[1]) * 1024 for line in told if line.startswith(kinds))
    # A worker's are those that it has made or changed: all others are its parent's as well.
    maps = process.memory_maps(grouped=False)
    return sum(
        each.pss
        if each.path.startswith("/dev/shm/")
        else min(each.anonymous, each.private_dirty + each.private_clean)
        for each in maps
    )


def _shared_files(pid: int) -> dict[int, int]:
    """Bytes of the open files in /dev/shm, by inode; they have lost their names already."""
    found = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(link).startswith("/dev/shm/"):
            status = link.stat()
            found[status.st_ino] = status.st_blocks * 512
    return found


def _mapped_files(pid: int) -> set[int]:
    lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    return {int(line.split()[4]) for line in lines if " /dev/shm/" in line}


def is_out_of_memory(error: BaseException) -> bool:
    """Is this the error of a device, or of this machine, that has no memory left?"""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The CPU's allocator, Metal's, and cuDNN's and cuBLAS's own requests raise a plain
    # RuntimeError, known by its text alone.
    texts = ["can't allocate memory", "out of memory", "ALLOC_FAILED"]
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY:
        # Of oneDNN's requests no more is said than this; without a limit it has other causes.
        texts += ["could not create a primitive", "could not execute a primitive"]
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
