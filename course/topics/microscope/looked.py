"""Which kernels a call launched, and how long it took, on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from course.topics.microscope.cases import Case, in_format
from course.topics.roofline.timing import seconds

BETWEEN = "spin_kernel"  # what torch.cuda._sleep launches
AT_ONCE = 100  # cases in one profile
REPEATS = 5  # on a CPU


def timed(case: Case, device: torch.device, rep_ms: float = 20, **how: Any) -> float:
    """Seconds of one call: the median, on a GPU with a cold cache."""
    with in_format(case.dtype, device):
        call = case.call(device, **how)
        if device.type == "cuda":
            import triton

            took = triton.testing.do_bench(call, rep_ms / 4, rep_ms, return_mode="median")
            return took / 1e3
        call()
        return sorted(seconds(call, device) for _ in range(REPEATS))[REPEATS // 2]


def kernels(cases: Iterable[Case], device: torch.device) -> list[tuple[str, ...]]:
    """The kernels that each case launches, in their order; on a CPU none are seen."""
    cases = list(cases)
    if device.type != "cuda":
        return [()] * len(cases)
    found = []
    for begin in range(0, len(cases), AT_ONCE):
        found += _kernels(cases[begin : begin + AT_ONCE], device)
    return found


def _kernels(cases: list[Case], device: torch.device) -> list[tuple[str, ...]]:
    """A marker before and after each call tells its kernels from those that made its tensors."""
    torch.cuda.synchronize()
    cuda = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=cuda) as profile:
        for case in cases:
            with in_format(case.dtype, device):
                call = case.call(device)
                torch.cuda._sleep(1000)
                call()
                torch.cuda._sleep(1000)
        torch.cuda.synchronize()
    events = [each for each in profile.events() if each.device_type.name == "CUDA"]
    events.sort(key=lambda each: each.time_range.start)
    parts = between([each.name for each in events])
    if len(parts) != len(cases):
        raise RuntimeError(f"{len(parts)} calls were seen, of {len(cases)}")
    return parts


def between(names: list[str]) -> list[tuple[str, ...]]:
    """The names between each first and second marker."""
    parts: list[list[str]] = [[]]
    for name in names:
        if BETWEEN in name:
            parts.append([])
        else:
            parts[-1].append(name)
    return [tuple(n for n in part if not n.startswith("Mem")) for part in parts[1::2]]
