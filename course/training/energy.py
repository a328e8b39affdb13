"""Watts and joules: what the device's own counter says that it used."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch


def counter(device: torch.device) -> Callable[[], float] | None:
    """A function that reads the joules which the device used so far; None where it counts none.

    NVIDIA GPUs since Volta count them: nvmlDeviceGetTotalEnergyConsumption, in millijoules, the
    whole board with its memory. Neither the host nor its cooling is in it.
    """
    if device.type != "cuda" or torch.version.cuda is None:
        return None
    import pynvml

    try:
        handle = board(device)
        pynvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except pynvml.NVMLError:
        return None
    return lambda: pynvml.nvmlDeviceGetTotalEnergyConsumption(handle) / 1e3


def board(device: torch.device) -> Any:
    """NVML's handle of a GPU: by its UUID, since NVML counts those too that PyTorch may not use.

    Raises:
        pynvml.NVMLError: its driver does not answer.
    """
    import pynvml

    pynvml.nvmlInit()
    uuid = str(torch.cuda.get_device_properties(device).uuid).removeprefix("GPU-")
    return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{uuid}")


def driver_version(device: torch.device) -> str:
    """The version of an NVIDIA GPU's driver; empty for another device."""
    if device.type != "cuda" or torch.version.cuda is None:
        return ""
    import pynvml

    try:
        pynvml.nvmlInit()
        return str(pynvml.nvmlSystemGetDriverVersion())
    except pynvml.NVMLError:
        return ""


LEAST_S = 1.0  # the counter moves a few times a second: of a shorter stretch it says little


class EnergyMeter:
    """The mean power of a device over the stretches between `start` and `stop`.

    The host runs ahead of the device, so its clock cannot say which step a joule belongs to.
    Power can be had without that: the device is at work from the first reading to the last.
    """

    def __init__(self, read: Callable[[], float] | None) -> None:
        self._read = read
        self._joules = self._seconds = 0.0
        self._began: tuple[float, float] | None = None

    def start(self) -> None:
        """Begin a stretch, unless one is under way."""
        if self._read and self._began is None:
            self._began = self._read(), time.perf_counter()

    def stop(self) -> None:
        """End the stretch, if there is one. The device must have been waited for."""
        if self._read and self._began:
            self._joules += self._read() - self._began[0]
            self._seconds += time.perf_counter() - self._began[1]
            self._began = None

    @property
    def watts(self) -> float | None:
        """Mean power; None where nothing was counted, or for too short a time."""
        if self._joules <= 0 or self._seconds < LEAST_S:
            return None
        return self._joules / self._seconds

    def summary(self, images_per_s: float) -> dict[str, float]:
        """Fields of the record: watts, and joules_per_image; none without a counter.

        Args:
            images_per_s: of this one device. Of several, rank 0's stands for the others.
        """
        if self.watts is None:
            return {}
        return {"watts": self.watts, "joules_per_image": self.watts / images_per_s}
