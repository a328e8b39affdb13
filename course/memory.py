"""Memory in GiB: what a run took at its peak."""

from __future__ import annotations

import resource
import sys

import torch

GIB = 1024**3


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


def is_out_of_memory(error: BaseException) -> bool:
    """Is this the error of a device, or of this machine, that has no memory left?"""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # The CPU's allocator, Metal's, and cuDNN's and cuBLAS's own requests raise a plain
    # RuntimeError, known by its text alone.
    texts = ("can't allocate memory", "out of memory", "ALLOC_FAILED")
    return isinstance(error, RuntimeError) and any(text in str(error) for text in texts)
