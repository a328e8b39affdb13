"""The permission to read a GPU's hardware counters, on this machine.

https://developer.nvidia.com/ERR_NVGPUCTRPERM; capability numbers: linux/capability.h.
"""

from __future__ import annotations

from pathlib import Path

DRIVER = Path("/proc/driver/nvidia/params")
PROCESS = Path("/proc/self/status")
ADMIN_ONLY = "RmProfilingAdminOnly: 1"
SYS_ADMIN = 21  # the bit of CAP_SYS_ADMIN


def counter_permission() -> str:
    """Return whether this process may read the counters, and which setting decides it."""
    if not DRIVER.exists():
        return "There is no NVIDIA driver for Linux here, so there are no counters to read."
    if ADMIN_ONLY not in DRIVER.read_text():
        return "The driver lets all users read counters."
    lines = PROCESS.read_text().splitlines()
    effective = int(next(line for line in lines if line.startswith("CapEff")).split()[1], 16)
    if effective >> SYS_ADMIN & 1:
        return "The driver lets only administrators read counters; this process has SYS_ADMIN."
    return "The driver lets only administrators read counters: expect ERR_NVGPUCTRPERM."
