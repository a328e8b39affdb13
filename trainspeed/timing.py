"""Time operations on this machine: in one number format, or stage by stage on one core."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from course.data.images import one_thread
from course.training.precision import HALF, set_tf32, tf32_settings

FORMATS = ("fp32", "tf32", "bf16", "fp16")
ROUNDS = 4  # of `time_stages`


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
    _synchronize(device)
    begin = time.perf_counter()
    call()
    _synchronize(device)
    return time.perf_counter() - begin


def quartiles(times: list[float]) -> tuple[float, float, float]:
    """Return the first quartile, the median and the third quartile."""
    return tuple(float(value) for value in np.percentile(times, [25, 50, 75]))


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


def median_ms(work: Callable[[], Any]) -> float:
    """Time some work on any device: the median of its calls, in milliseconds."""
    # Its import warns where it finds nvcc and no GPU, as on a login node.
    logging.getLogger("torch.utils.cpp_extension").setLevel(logging.ERROR)
    from torch.utils.benchmark import Timer

    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return 1e3 * timer.blocked_autorange().median


def _synchronize(device: torch.device) -> None:
    if device.type != "cpu":
        torch.accelerator.synchronize(device)
