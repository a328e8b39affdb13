"""Marks in time on a device, and the seconds between them."""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np
import torch


class Clock(Protocol):
    """Marks in time, and the seconds between two of them."""

    def mark(self) -> Any: ...
    def is_past(self, mark: Any) -> bool: ...
    def seconds(self, begin: Any, end: Any) -> float: ...


class HostClock:
    """The host's clock. An accelerator without timed events is waited for at each mark."""

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
    """Events in the device's own queue of work: they time it without making it wait."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> torch.Event:
        event = torch.Event(self.device, enable_timing=True)
        event.record()
        return event

    def is_past(self, mark: torch.Event) -> bool:
        return mark.query()

    def seconds(self, begin: torch.Event, end: torch.Event) -> float:
        return begin.elapsed_time(end) / 1e3  # it answers in milliseconds


def clock_for(device: torch.device) -> Clock:
    """Device events where they exist (CUDA, ROCm, XPU); else the host's clock."""
    return EventClock(device) if device.type in ("cuda", "xpu") else HostClock(device)


def with_quartiles(seconds: np.ndarray, batch: int) -> dict[str, float]:
    """Medians and quartiles of steps' seconds, and of images per second, as a record has them."""
    q1, median, q3 = (float(each) for each in np.percentile(seconds, [25, 50, 75]))
    return {
        "step_s": median,
        "step_s_q1": q1,
        "step_s_q3": q3,
        "images_per_s": batch / median,
        "images_per_s_q1": batch / q3,
        "images_per_s_q3": batch / q1,
    }
