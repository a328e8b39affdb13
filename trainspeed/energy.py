"""Watts and joules, from the energy counter of the device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

MIN_SECONDS = 1.0  # the counter changes a few times a second, so shorter measurements are useless


def counter(device: torch.device) -> Callable[[], float] | None:
    """Return a function that reads the joules used so far, or None without a counter.

    NVIDIA GPUs have one since Volta (nvmlDeviceGetTotalEnergyConsumption, in millijoules). It
    counts the whole board with its memory, but neither the host nor the cooling. The function
    raises pynvml.NVMLError if the driver stops answering.
    """
    if not _is_nvidia(device):
        return None
    import pynvml

    try:
        handle = nvml_handle(device)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def nvml_handle(device: torch.device) -> Any:
    """Return NVML's handle of a GPU, by UUID: NVML also numbers GPUs that PyTorch may not use.

    Raises:
        pynvml.NVMLError: the driver does not answer.
    """
    import pynvml

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def driver_version(device: torch.device) -> str:
    """Return the version of an NVIDIA GPU's driver, or "" for any other device.

    Raises:
        pynvml.NVMLError: the driver does not answer.
    """
    if not _is_nvidia(device):
        return ""
    import pynvml

    pynvml.nvmlInit()
    return str(pynvml.nvmlSystemGetDriverVersion())


def _is_nvidia(device: torch.device) -> bool:
    return device.type == "cuda" and torch.version.cuda is not None


class EnergyMeter:
    """Measures the mean power of a device over all intervals between `start` and `stop`.

    The host runs ahead of the device, so its clock cannot assign joules to steps. The mean power
    needs no such assignment, because the device is busy from the first reading to the last.

    The counter changes only a few times a second, so a reading may be old, but hardly when it has
    just changed. So an interval is measured from the first change that a reading shows to the
    last, or between its two ends if the readings show fewer than two.

    Args:
        read: returns joules, or None if the driver does not answer; None without a counter.
    """

    def __init__(self, read: Callable[[], float | None] | None) -> None:
        self._read = read
        self._joules = self._seconds = 0.0
        # Readings in this interval, each joules and seconds: both ends; the first and last change.
        self._ends: list[tuple[float, float]] = []
        self._changes: list[tuple[float, float]] = []

    def start(self) -> None:
        """Begin an interval, or read the counter within it. Call this in every step."""
        if not self._read:
            return
        joules = self._read()
        if joules is None:  # a driver that fails once is not read again, because it may take long
            self._read, self._joules, self._ends = None, 0.0, []
            return
        reading = joules, time.perf_counter()
        if self._ends and reading[0] != self._ends[-1][0]:
            self._changes[1:] = [reading]
        self._ends[1:] = [reading]

    def stop(self) -> None:
        """End the interval, if one has begun. Synchronize with the device first."""
        if not self._ends:
            return
        self.start()
        if not self._ends:
            return
        readings = self._changes if len(self._changes) == 2 else self._ends
        (joules, begin), (end_joules, end) = readings
        self._joules += end_joules - joules
        self._seconds += end - begin
        self._ends, self._changes = [], []

    @property
    def watts(self) -> float | None:
        """Return the mean power; None after an error, or if the time was too short."""
        if self._joules <= 0 or self._seconds < MIN_SECONDS:
            return None
        return self._joules / self._seconds
