"""Measure operations: their time, also stage by stage on one core, and their energy."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import distributed

from trainspeed.clocks import HostClock, synchronize
from trainspeed.energy import MIN_SECONDS, EnergyMeter, counter
from trainspeed.formats import FORMATS, HALF, set_tf32, tf32_settings
from trainspeed.resources import one_thread
from trainspeed.text import digits

ROUNDS = 4  # of `time_stages`
LARGE = 2**20  # bytes, from which a CPU needs long for an all-reduce
READ_S = 0.05  # between readings of the energy counter, each of which delays a call
AHEAD = 16  # calls that the host may request before it waits


@contextmanager
def number_format(device: torch.device, precision: str) -> Iterator[torch.dtype]:
    """Allow TF32 only for "tf32" within the context, and return the dtype for tensors.

    Raises:
        ValueError: an unknown precision, or one that the device does not have.
    """
    if precision not in FORMATS:
        raise ValueError(f"precision={precision!r}: choose {' or '.join(FORMATS)}")
    if precision == "tf32" and device.type != "cuda":
        raise ValueError("precision='tf32' exists only on CUDA: choose fp32 or bf16 or fp16")
    before = tf32_settings()
    set_tf32(precision == "tf32")
    try:
        yield HALF.get(precision, torch.float32)
    finally:
        set_tf32(*before)


def seconds(call: Callable[[], Any], device: torch.device) -> float:
    """Return the seconds of one call, until the device has finished it."""
    clock = HostClock(device)
    begin = clock.mark()
    call()
    return clock.mark() - begin


def fastest(call: Callable[[], Any], device: torch.device, budget_s: float = 0.5) -> float:
    """Return the seconds of the fastest of up to ten calls: as many as begin within `budget_s`.

    Other programs can only slow a call down.
    """
    call()  # the first call chooses algorithms, starts threads and touches memory
    times: list[float] = []
    while not times or (len(times) < 10 and sum(times) < budget_s):
        times.append(seconds(call, device))
    return min(times)


def quartiles(values: Sequence[float] | np.ndarray) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    return tuple(float(value) for value in np.percentile(values, [25, 50, 75]))


def time_stages(read: Callable[[], Iterable[Any]], stages: Sequence[Callable]) -> np.ndarray:
    """Time what one core does for each item: reading it, then each stage on the result so far.

    Everything is repeated ROUNDS times with the same random numbers, and the shortest time counts
    because other programs disturbed it least. So files come from the page cache, not from a disk.

    Args:
        read: returns a new iterator over the items.

    Returns:
        Milliseconds of shape (items, 1 + stages).
    """
    rounds = []
    with one_thread(), torch.random.fork_rng(devices=[]):
        for _ in range(ROUNDS):
            torch.manual_seed(0)
            rows, begin = [], time.perf_counter()
            for value in read():
                marks = [begin, time.perf_counter()]
                for stage in stages:
                    value = stage(value)
                    marks.append(time.perf_counter())
                rows.append(np.diff(marks))
                begin = time.perf_counter()
            rounds.append(rows)
    return 1e3 * np.min(rounds, axis=0)


def time_all_reduce(size: int, device: torch.device, blocks: int = 7) -> list[float]:
    """Time all-reduces of `size` bytes; every rank of the default process group must call this.

    Returns:
        Seconds of one all-reduce, the mean of each block of several.
    """
    values, clock = torch.zeros(size // 4, device=device), HostClock(device)
    count = 2 if device.type == "cpu" and size > LARGE else 20
    times = []
    for _ in range(blocks + 1):
        distributed.barrier()
        begin = clock.mark()
        for _ in range(count):
            distributed.all_reduce(values)
        times.append((clock.mark() - begin) / count)
    return times[1:]  # the first one also connects


def median_ms(work: Callable[[], Any]) -> float:
    """Time some work on any device: the median of its calls, in milliseconds."""
    # Its import warns where it finds nvcc and no GPU, as on a login node.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils.benchmark import Timer

    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return 1e3 * timer.blocked_autorange().median


@dataclass(frozen=True)
class Energy:
    """The energy of a call on a GPU, which includes its memory, but neither host nor cooling."""

    joules: float  # of a call
    watts: float
    seconds: float  # of a call

    def __str__(self) -> str:
        ms = digits(1e3 * self.seconds)
        return f"{digits(self.joules)} J per call: {digits(self.watts)} W for {ms} ms"


def measure_energy(
    step: Callable[[], Any], *, seconds: float = 10.0, device: torch.device | None = None
) -> Energy:
    """Call a step again and again, and return the energy of a call.

    Args:
        step: such as a training step; it is called once before the measurement.
        seconds: for which it is called, at least.
        device: the GPU; by default the current one.

    Raises:
        ValueError: the device has no energy counter, its driver stops answering, or the time is
            too short for the counter.
    """
    if seconds < MIN_SECONDS:
        raise ValueError(
            f"seconds={seconds:g}: expected at least {MIN_SECONDS:g}, because a GPU's counter "
            f"changes only a few times a second"
        )
    device = device or torch.accelerator.current_accelerator(check_available=True)
    device = device or torch.device("cpu")
    if not (read := counter(device)):
        raise ValueError(
            f"{device.type}: no energy counter is known. NVIDIA's GPUs have one since Volta: "
            f"measure there"
        )
    import pynvml

    step()
    synchronize(device)
    meter, calls = EnergyMeter(read), 0
    begin = now = next_read = time.perf_counter()
    try:
        while now - begin < seconds:
            if now >= next_read:
                meter.start()
                next_read = now + READ_S
            step()
            calls += 1
            if calls % AHEAD == 0:
                synchronize(device)  # or the host would request minutes of work
            now = time.perf_counter()
        synchronize(device)
        passed = time.perf_counter() - begin
        meter.stop()
    except pynvml.NVMLError as error:
        raise ValueError(f"the driver of {device} stopped answering ({error})") from error
    if meter.watts is None:
        raise ValueError(f"the counter of {device} did not change in {passed:.1f} s")
    return Energy(meter.watts * passed / calls, meter.watts, passed / calls)
