"""The time of a case, and the kernels that it launches, on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from itertools import pairwise
from statistics import median
from typing import Any

import torch
from threadpoolctl import threadpool_limits

from course.training import attempt
from electives._compat import gpu_sleep
from electives.microscope.cases import Case, Product, tf32_switches
from trainspeed import timing

MARKER = "spin_kernel"  # the kernel that gpu_sleep launches
CASES_PER_PROFILE = 100
CPU_REPEATS = 9
BATCH_S = 0.025  # of calls without a pause; long compared with waiting for the GPU


def time_case(case: Case, device: torch.device, rep_ms: float = 20) -> float:
    """Return a call's median seconds on a GPU with a cold cache.

    On a CPU one core computes, and the fastest call counts, because other programs only make a call
    slower.

    Clearing the cache takes as long as a short product and lets the units rest, so the clock is
    higher here than in `time_without_pause`.
    """
    with tf32_switches(case.dtype, device):
        call = case.call(device)
        if device.type == "cuda":
            from triton.testing import do_bench

            return do_bench(call, rep_ms / 4, rep_ms, return_mode="median") / 1e3
        with threadpool_limits(1):
            call()
            return min(timing.seconds(call, device) for _ in range(CPU_REPEATS))


def time_without_pause(
    case: Product, device: torch.device, duration_s: float, *, zeros: bool = False
) -> dict[str, float]:
    """Time one call on a GPU that repeats it without a pause, as in training.

    Returns: for the second half of the time, tflop_per_s; and mhz and watts while the GPU computes
    (none without NVIDIA's driver).
    """
    read_sensors = _sensor_reader()
    with tf32_switches(case.dtype, device):
        call = case.call(device, zeros=zeros)
        call()
        count = max(1, round(BATCH_S / timing.seconds(call, device)))
        marks, sensors, end = [_mark()], [], time.monotonic() + duration_s
        while len(marks) < 3 or time.monotonic() < end:
            for _ in range(count):
                call()
            marks.append(_mark())
            sensors.append(read_sensors())
            marks[-2].synchronize()  # while the latest batch runs
        marks[-1].synchronize()
    times = [1e3 * begin.elapsed_time(end) / count for begin, end in pairwise(marks)]
    half = len(times) // 2
    readings = zip(("mhz", "watts"), zip(*sensors[half:]))
    medians = {name: round(median(values)) for name, values in readings}
    return {"tflop_per_s": case.flop / median(times[half:]) / 1e6} | medians


def _mark() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _sensor_reader() -> Callable[[], list[float]]:
    """Return a function that reads the GPU's clock and power."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
    except Exception:  # no NVIDIA driver, or it does not answer
        return list

    def read() -> list[float]:
        mhz = float(pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM))
        return [mhz, pynvml.nvmlDeviceGetPowerUsage(handle) / 1e3]

    return lambda: attempt("clock and power", read, default=[])


def trace_kernels(cases: Iterable[Case], device: torch.device) -> list[list[dict[str, Any]]]:
    """Return the kernels that each case launches, in order: kernel and us; none on a CPU."""
    cases = list(cases)
    if device.type != "cuda":
        return [[] for _ in cases]
    starts = range(0, len(cases), CASES_PER_PROFILE)
    return [part for start in starts for part in _trace(cases[start : start + CASES_PER_PROFILE])]


def _trace(cases: list[Case]) -> list[list[dict[str, Any]]]:
    torch.cuda.synchronize()
    cuda = [torch.profiler.ProfilerActivity.CUDA]
    # acc_events: without it, PyTorch warns of events that later cycles clear; here is only one.
    with torch.profiler.profile(activities=cuda, acc_events=True) as profile:
        for case in cases:
            with tf32_switches(case.dtype, torch.device("cuda")):
                call = case.call(torch.device("cuda"))
                gpu_sleep(1000)
                call()
                gpu_sleep(1000)
        torch.cuda.synchronize()
    events = [event for event in profile.events() if event.device_type.name == "CUDA"]
    events.sort(key=lambda event: event.time_range.start)
    parts = split_at_markers(
        {"kernel": event.name, "us": event.time_range.elapsed_us()} for event in events
    )
    if len(parts) != len(cases):
        raise RuntimeError(f"the profiler recorded {len(parts)} of {len(cases)} calls: try again")
    return parts


def split_at_markers(kernels: Iterable[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """Return the kernels between each first and second marker, without memory operations."""
    parts: list[list[dict[str, Any]]] = [[]]
    for kernel in kernels:
        if MARKER in kernel["kernel"]:
            parts.append([])
        elif not kernel["kernel"].startswith("Mem"):
            parts[-1].append(kernel)
    return parts[1::2]
