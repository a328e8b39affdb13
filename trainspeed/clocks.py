"""Clocks of a device: marks in time, and the seconds between two of them."""

from __future__ import annotations

import time

import torch


def synchronize(device: torch.device) -> None:
    """Wait until a device has done everything that was requested."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class HostClock:
    """The host's clock. It waits for the accelerator at each mark, also on Apple's."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def mark(self) -> float:
        """Return the time, in seconds, when the device has done everything so far."""
        synchronize(self.device)
        return time.perf_counter()

    def is_past(self, mark: float) -> bool:
        """Return whether the device has reached a mark."""
        return True

    def seconds(self, begin: float, end: float) -> float:
        """Return the seconds between two marks."""
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
