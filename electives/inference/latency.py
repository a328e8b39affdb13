"""A network's latency: of each call, and as recorded by the number of images and by variant."""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import pandas as pd

from course.runs import recorded_table

Call = Callable[[], Any]
Latencies = Callable[[Call, Call, int, int], list[float]]
KNEE_SHARE = 0.9  # of the highest throughput


def latencies(call: Call, wait: Call, count: int, warm_up: int) -> list[float]:
    """Return the seconds of each of `count` calls, until the device is done with it.

    Args:
        wait: returns once the device has done all queued work.
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


def find_knee(table: pd.DataFrame) -> int:
    """Return the fewest images at once with nearly the highest throughput."""
    enough = table["images_per_s"] >= KNEE_SHARE * table["images_per_s"].max()
    return int(table.loc[enough, "batch"].min())


def load_measurements(machine: str) -> pd.DataFrame:
    """Load what research/inference.py measured on a machine, a row per variant and batch.

    Columns: part ("mode", "ladder", or "batch", whose "compiled" also has a CUDA graph), variant,
    batch, p50_s, p99_s, calls, images_per_s, machine; peak_gib ("mode": above what the network
    needs); faster ("ladder": times as fast as fp32 with the same batch); error and made_s (of
    scores, and until the first answer; research/inference.py explains them).

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_table(machine, "inference").rename(columns={"way": "variant"})
    ladder = table[table["part"] == "ladder"]
    fp32 = ladder[ladder["variant"] == "fp32"].set_index("batch")["p50_s"]
    faster = ladder["batch"].map(fp32) / ladder["p50_s"]
    return table.assign(images_per_s=table["batch"] / table["p50_s"], faster=faster)
