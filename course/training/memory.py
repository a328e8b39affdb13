"""Memory in GiB: what a run took at its peak, and is allowed to take."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from course.config import GIB

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt
RESERVE_GIB = 0.5  # above a ceiling on a CPU, for one layer's own requests; see `limit`


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
    resident size, libraries included (some 0.5 GiB before the first tensor).
    """
    if device.type == "cpu":
        unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes on macOS, else KiB
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
        return {"peak_gib": resident, "reserved_gib": None, "memory_kind": "process, resident"}
    if device.type == "mps":  # Metal's allocator keeps no peak
        held = torch.mps.driver_allocated_memory() / GIB
        return {"peak_gib": held, "reserved_gib": None, "memory_kind": "driver, at the end"}
    return {
        "peak_gib": torch.accelerator.max_memory_allocated(device) / GIB,
        "reserved_gib": torch.accelerator.max_memory_reserved(device) / GIB,
        "memory_kind": "device allocator",
    }


def host_gib() -> float:
    """GiB of host memory that this process and those it started, DataLoader workers, hold now.

    It is what the system cannot take back: on Linux their anonymous and shared pages, where a
    page that several share counts once, and the batches in /dev/shm that are on their way, which
    no process has mapped. Code of libraries, which comes from files, is not counted. Elsewhere it
    is what each process has for itself.
    """
    family = [psutil.Process(), *psutil.Process().children(recursive=True)]
    held, waiting, mapped = 0, {}, set()
    for process in family:
        try:
            if sys.platform != "linux":
                held += process.memory_full_info().uss
                continue
            held += _held_bytes(process.pid)
            waiting |= _shared_files(process.pid)
            mapped |= _mapped_files(process.pid)
        except (psutil.Error, OSError):  # it ended meanwhile
            continue
    return (held + sum(waiting[each] for each in waiting.keys() - mapped)) / GIB


def _held_bytes(pid: int) -> int:
    """Its part of the pages that no file stands behind: proc(5), smaps_rollup."""
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    kinds = ("Pss_Anon:", "Pss_Shmem:")
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(kinds))


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
