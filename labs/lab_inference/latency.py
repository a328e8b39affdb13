"""How long a network takes to answer: each call by itself, and how that grows with its images."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from labs.lab_inference.variants import Way, images_for, ready

Call = Callable[[], Any]
Latencies = Callable[[Call, Call, int, int], list[float]]
WARM_UP = 5  # calls
LEAST, MOST = 50, 500  # calls that are timed: of fewer a 99th percentile says little
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
NEARLY = 0.9  # of the most images a second, where the knee is


def latencies(call: Call, wait: Call, count: int, warm_up: int) -> list[float]:
    """Seconds of each of `count` calls, from its beginning until the device is done with it.

    Args:
        wait: returns once the device has done all that it was asked to.
        warm_up: calls before them, which are not timed.
    """
    for _ in range(warm_up):
        call()
        wait()
    times = []
    for _ in range(count):
        begin = perf_counter()
        call()
        wait()
        times.append(perf_counter() - begin)
    return times


def waiting(device: torch.device) -> Call:
    """What waits for the device: nothing, where calls return when all is done."""
    if device.type == "cpu":
        return lambda: None
    return lambda: torch.accelerator.synchronize(device)


def timed(
    call: Call, device: torch.device, budget_s: float = 0.5, time_by: Latencies = latencies
) -> dict[str, float]:
    """p50_s and p99_s of a call, and calls: as many as fit in the budget, within LEAST and MOST."""
    wait = waiting(device)
    first = time_by(call, wait, 1, WARM_UP)[0]
    count = int(np.clip(budget_s / first, LEAST, MOST))
    times = time_by(call, wait, count, 0)
    middle, late = (float(value) for value in np.percentile(times, [50, 99]))
    return {"p50_s": middle, "p99_s": late, "calls": count}


def curve(
    model: nn.Module,
    way: Way = Way(),
    batches: Iterable[int] = BATCHES,
    px: int = 32,
    budget_s: float = 0.3,
    time_by: Latencies = latencies,
) -> pd.DataFrame:
    """How long a network takes by the number of images that it is given at once.

    Columns: batch, p50_s, p99_s, calls, images_per_s (batch ÷ p50_s: one call after the other).
    """
    rows = []
    for batch in batches:
        images = images_for(model, batch, px)
        call = ready(model, images, way)
        rows.append({"batch": batch, **timed(call, images.device, budget_s, time_by)})
    return rates(pd.DataFrame(rows))


def rates(table: pd.DataFrame) -> pd.DataFrame:
    """The table with the images answered in a second."""
    return table.assign(images_per_s=table["batch"] / table["p50_s"])


def knee(table: pd.DataFrame, nearly: float = NEARLY) -> int:
    """The fewest images at once with nearly the most images a second: beyond it, latency grows."""
    enough = table["images_per_s"] >= nearly * table["images_per_s"].max()
    return int(table.loc[enough, "batch"].min())
