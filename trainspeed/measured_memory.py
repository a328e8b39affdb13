"""The memory of this process, in GiB: its peak, and a limit that it may get."""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import torch
from torch.nn.modules.module import register_module_forward_pre_hook
from torch.optim.optimizer import register_optimizer_step_pre_hook

from trainspeed.resources import GIB, memory_bytes

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of glibc's mallopt
RESERVE_GIB = 0.5  # above a limit on a CPU, for requests within one layer; see `limit`


def limit(device: torch.device, memory_gib: float) -> None:
    """Let this process run out of memory above this many GiB; 0: no limit.

    The allocator of a GPU enforces the limit. On a CPU, the peak resident size (see `peak`) is
    checked before each layer's forward pass and each update, and a MemoryError is raised. On Linux
    the system also refuses requests beyond RESERVE_GIB above the limit, so that one large request
    fails at once. The reserve exists because oneDNN does not check all of its requests: at a hard
    limit, one backward pass in a hundred ended with a segmentation fault.

    Raises:
        ValueError: the device has no such limit, or the process already uses more.
    """
    if memory_gib == 0:
        return
    if device.type == "cuda":
        index = torch.cuda.current_device() if device.index is None else device.index
        fraction = memory_gib * GIB / torch.cuda.get_device_properties(index).total_memory
        torch.cuda.set_per_process_memory_fraction(min(fraction, 1.0), index)
        return
    if device.type != "cpu":
        raise ValueError(f"memory_gib={memory_gib:g}: {device.type} has no limit. Use cuda or cpu")
    used = peak(device)["peak_gib"]
    if used >= memory_gib:
        raise ValueError(
            f"memory_gib={memory_gib:g}: this process took {used:.2f} GiB before its first step "
            f"(libraries, weights). Set a higher limit"
        )

    def check(caller: Any, *_: Any) -> None:
        used = peak(device)["peak_gib"]
        if used > memory_gib:
            raise MemoryError(
                f"{type(caller).__name__}: the process has taken {used:.2f} GiB, and "
                f"memory_gib={memory_gib:g} is its limit"
            )

    register_module_forward_pre_hook(check)
    register_optimizer_step_pre_hook(check)
    if sys.platform == "linux":
        # VmData is what RLIMIT_DATA counts: private, writable memory (proc(5)).
        most = _proc_bytes("self/status", "VmData:") + int((memory_gib - used + RESERVE_GIB) * GIB)
        _, hard = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def total_gib(device: torch.device) -> float:
    """Return the memory of a GPU; for a CPU or a GPU that shares it, the host's."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory / GIB
    return memory_bytes()[0] / GIB


def keep_freed() -> None:
    """Let this process reuse freed memory for its next step, in large pages (Linux).

    By default glibc returns large blocks to the system at once, and gets new pages for them in
    every step. How long this takes differs between processes that do the same, and so does the
    speed of an optimizer that reads all weights. THP_MEM_ALLOC_ENABLE is not changed if it is set.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # PyTorch reads it when it allocates


def reset_peak(device: torch.device) -> None:
    """Start a new measurement of the peak, if the device supports it."""
    if device.type not in ("cpu", "mps"):
        torch.accelerator.reset_peak_memory_stats(device)


def peak(device: torch.device) -> dict[str, float | str | None]:
    """Return the peak since `reset_peak`: peak_gib, reserved_gib, and memory_kind, its definition.

    On an accelerator these are the tensors of PyTorch's allocator, and what it reserved for them.
    On a CPU it is the peak resident size of the process, including libraries (about 0.5 GiB before
    the first tensor).
    """
    reserved_gib = None
    if device.type == "cpu":
        unit = 1 if sys.platform == "darwin" else 1024  # getrusage(2): bytes on macOS, else KiB
        peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / GIB
        kind = "process, resident"
    elif device.type == "mps":  # Metal's allocator records no peak
        peak_gib, kind = torch.mps.driver_allocated_memory() / GIB, "driver, at the end"
    else:
        peak_gib = torch.accelerator.max_memory_allocated(device) / GIB
        reserved_gib = torch.accelerator.max_memory_reserved(device) / GIB
        kind = "device allocator"
    return {"peak_gib": peak_gib, "reserved_gib": reserved_gib, "memory_kind": kind}


def host_gib() -> float:
    """Return the GiB of host memory that this process and its DataLoader workers use now.

    On Linux these are the anonymous pages of this process, the pages that only a worker has, and
    batches in /dev/shm, each counted once. The code of libraries is not counted. On other systems
    it is the sum of what each process has for itself.
    """
    is_linux, this_process = sys.platform == "linux", psutil.Process()
    total, open_batches, mapped = 0, {}, set()
    for process in [this_process, *this_process.children(recursive=True)]:
        try:
            if is_linux:
                open_batches |= _open_shared_files(process.pid)
                lines = Path(f"/proc/{process.pid}/maps").read_text().splitlines()
                mapped |= {int(line.split()[4]) for line in lines if " /dev/shm/" in line}
            if is_linux and process == this_process:
                total += _proc_bytes("self/smaps_rollup", "Anonymous:", "Pss_Shmem:")
            else:
                total += process.memory_full_info().uss
        except (psutil.Error, OSError):  # it ended in the meantime
            continue
    # Batches between two processes are open files that neither has mapped.
    return (total + sum(open_batches[inode] for inode in open_batches.keys() - mapped)) / GIB


def _open_shared_files(pid: int) -> dict[int, int]:
    """Return the bytes of a process's open files in /dev/shm, by inode; they have no names."""
    sizes = {}
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):  # such as the descriptor of this listing
            if os.readlink(link).startswith("/dev/shm/"):
                status = link.stat()
                sizes[status.st_ino] = status.st_blocks * 512
    return sizes


def _proc_bytes(name: str, *keys: str) -> int:
    """Return the sum, in bytes, of these entries of a file in /proc, which are in KiB."""
    lines = Path("/proc", name).read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(keys))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error means that a device, or this machine, has no memory left."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The allocators of the CPU and of Metal, cuDNN and cuBLAS raise a plain RuntimeError.
    texts = ["can't allocate memory", "out of memory", "ALLOC_FAILED"]
    if resource.getrlimit(resource.RLIMIT_DATA)[0] != resource.RLIM_INFINITY:
        # oneDNN's only message; without a limit it has other causes.
        texts += ["could not create a primitive", "could not execute a primitive"]
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
