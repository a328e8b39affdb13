"""Times of work on one core, stage by stage."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.benchmark import Timer

from course.data.images import one_thread

ROUNDS = 4


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
    timer = Timer("work()", globals={"work": work}, num_threads=torch.get_num_threads())
    return 1e3 * timer.blocked_autorange().median
