"""Clocks of a device: marks in time, and the seconds between two of them."""

from __future__ import annotations

import time

import numpy as np
import torch


class HostClock:
    """The host's clock. It waits for the accelerator at each mark, also on Apple's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> float:
        if self.device.type != "cpu":
            torch.accelerator.synchronize(self.device)
        return time.perf_counter()

    def is_past(self, mark: float) -> bool:
        return True

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


class EventClock:
    """Events in the device's queue, which time its work without making it wait."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.Event:
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def is_past(self, mark: torch.Event) -> bool:
        return mark.query()

    def seconds(self, begin: torch.Event, end: torch.Event) -> float:
        return begin.elapsed_time(end) / 1e3  # from milliseconds


Clock = HostClock | EventClock


def clock_for(device: torch.device) -> Clock:
    """Return device events on CUDA, ROCm and XPU, and the host's clock elsewhere."""
    return EventClock(device) if device.type in ("cuda", "xpu") else HostClock(device)


def speed_quartiles(seconds: np.ndarray, batch: int) -> dict[str, float]:
    """Return medians and quartiles of step times and of images/s, named as in a record."""
    q1, median, q3 = map(float, np.percentile(seconds, [25, 50, 75]))
    return {
        "step_s": median,
        "step_s_q1": q1,
        "step_s_q3": q3,
        "images_per_s": batch / median,
        "images_per_s_q1": batch / q3,
        "images_per_s_q3": batch / q1,
    }
