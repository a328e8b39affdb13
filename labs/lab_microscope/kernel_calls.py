"""Which kernels a call launched, and how long it took, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch

from course.analysis.roofline.timing import quartiles, seconds
from labs.lab_microscope.cases import Case, in_format

BETWEEN = "spin_kernel"  # what torch.cuda._sleep launches
AT_ONCE = 100  # cases in one profile
REPEATS = 9  # on a CPU
BATCH_S = 0.025  # of calls without a pause: long beside what it takes to wait for the GPU
Kernel = tuple[str, float]  # its name, and its microseconds


def times(case: Case, device: torch.device, rep_ms: float = 20) -> tuple[float, float, float]:
    """Seconds of one call: first quartile, median, third; on a GPU with a cold cache.

    On a CPU one core computes, and all three are the fastest call's: other programs can only make
    one slower, and two cores would wait for each other whenever one of them has such a program.

    To clear the cache takes as long as a short product, and rests what multiplies: such a product
    runs at a higher clock here than in `steady`.
    """
    with in_format(case.dtype, device):
        call = case.call(device)
        if device.type == "cuda":
            import triton

            asked = [0.25, 0.5, 0.75]
            took = triton.testing.do_bench(call, rep_ms / 4, rep_ms, quantiles=asked)
            return tuple(each / 1e3 for each in took)
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            call()
            fastest = min(seconds(call, device) for _ in range(REPEATS))
        finally:  # what PyTorch refuses must not slow down all that follows
            torch.set_num_threads(threads)
        return fastest, fastest, fastest


def timed(case: Case, device: torch.device) -> float:
    """Seconds of one call: the median, or on a CPU the fastest."""
    return times(case, device)[1]


def steady(case: Case, device: torch.device, for_s: float, **how: Any) -> dict[str, float]:
    """One call's microseconds while it runs over and over without a pause, as in training.

    us and iqr_us are of the second half of the batches; so are mhz, watts and celsius, which are
    read while the GPU multiplies (and are left out where no driver of NVIDIA's answers).
    """
    watch, mark = _watch(), _marks(device)
    with in_format(case.dtype, device):
        call = case.call(device, **how)
        call()
        count = max(1, round(BATCH_S / seconds(call, device)))
        marks, seen, end = [mark()], [], time.monotonic() + for_s
        while len(marks) < 3 or time.monotonic() < end:
            for _ in range(count):
                call()
            marks.append(mark())
            seen.append(watch())
            marks[-2].synchronize()  # the batch that was just begun goes on
        marks[-1].synchronize()
    took = [1e3 * one.elapsed_time(other) / count for one, other in pairwise(marks)]
    half = len(took) // 2
    first, middle, third = quartiles(took[half:])
    found = {"us": round(middle, 3), "iqr_us": round(third - first, 3)}
    read = zip(("mhz", "watts", "celsius"), zip(*seen[half:]))
    return found | {name: round(quartiles(list(each))[1]) for name, each in read}


class Moment:
    """A moment on a CPU, which has come when its call returns: as an event in a GPU's queue."""

    def __init__(self) -> None:
        self.s = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is to be waited for."""

    def elapsed_time(self, other: Moment) -> float:
        """Milliseconds to another moment."""
        return 1e3 * (other.s - self.s)


def _marks(device: torch.device) -> Callable[[], Any]:
    """What puts a mark into the device's queue."""
    if device.type != "cuda":
        return Moment

    def mark() -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    return mark


def _watch() -> Callable[[], list[float]]:
    """What reads the GPU's clock in MHz, its power in watts and its temperature in °C."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # no NVIDIA driver, or none that answers
        return list
    return lambda: [
        float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)),
        pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3,
        float(pynvml.nvmlDeviceGetTemperature(handle, pynvml.NVML_TEMPERATURE_GPU)),
    ]


def kernels(cases: Iterable[Case], device: torch.device) -> list[tuple[Kernel, ...]]:
    """The kernels that each case launches, in their order; on a CPU none are seen."""
    cases = list(cases)
    if device.type != "cuda":
        return [()] * len(cases)
    found = []
    for begin in range(0, len(cases), AT_ONCE):
        found += _kernels(cases[begin : begin + AT_ONCE], device)
    return found


def _kernels(cases: list[Case], device: torch.device) -> list[tuple[Kernel, ...]]:
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
    parts = between([(each.name, each.time_range.elapsed_us()) for each in events])
    if len(parts) != len(cases):
        raise RuntimeError(f"{len(parts)} calls were seen, of {len(cases)}")
    return parts


def between(events: list[Kernel]) -> list[tuple[Kernel, ...]]:
    """The kernels between each first and second marker."""
    parts: list[list[Kernel]] = [[]]
    for name, us in events:
        if BETWEEN in name:
            parts.append([])
        else:
            parts[-1].append((name, us))
    return [tuple(each for each in part if not each[0].startswith("Mem")) for part in parts[1::2]]
