"""A network's latency: of each call, by the number of images, and by variant."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from time import perf_counter
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from course.analysis import fresh_compiler
from course.runs import recorded_table
from electives.inference.variants import LADDER, Variant, create_call, random_images

Call = Callable[[], Any]
Latencies = Callable[[Call, Call, int, int], list[float]]
WARM_UP_CALLS = 5
MIN_CALLS, MAX_CALLS = 50, 500  # a 99th percentile needs many
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BUDGET_S = 0.3  # of the calls of one row
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


def time_calls(
    call: Call, device: torch.device, budget_s: float = BUDGET_S, time_by: Latencies = latencies
) -> dict[str, float]:
    """Time as many calls as fit into the budget: p50_s, p99_s, and calls."""

    def wait() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    first = time_by(call, wait, 1, WARM_UP_CALLS)[0]
    count = int(np.clip(budget_s / first, MIN_CALLS, MAX_CALLS))
    times = time_by(call, wait, count, 0)
    median, late = (float(value) for value in np.percentile(times, [50, 99]))
    return {"p50_s": median, "p99_s": late, "calls": count}


def latency_curve(
    model: nn.Module, variant: Variant, time_by: Latencies = latencies
) -> pd.DataFrame:
    """Time a network by the number of images at once, from 1 to 256.

    Columns: batch, p50_s, p99_s, calls, images_per_s.
    """
    rows = []
    for batch in BATCHES:
        images = random_images(model, batch, 32)
        call = create_call(model, images, variant)
        rows.append({"batch": batch, **time_calls(call, images.device, BUDGET_S, time_by)})
    return _add_rates(pd.DataFrame(rows))


def _add_rates(table: pd.DataFrame) -> pd.DataFrame:
    return table.assign(images_per_s=table["batch"] / table["p50_s"])


def find_knee(table: pd.DataFrame) -> int:
    """Return the fewest images at once with nearly the highest throughput."""
    enough = table["images_per_s"] >= KNEE_SHARE * table["images_per_s"].max()
    return int(table.loc[enough, "batch"].min())


def time_ladder(model: nn.Module, time_by: Latencies = latencies) -> pd.DataFrame:
    """Time the variants of LADDER that this device supports, with 1 and 64 images.

    Columns: variant, batch, p50_s, p99_s, calls, images_per_s, faster (times as fast as fp32). If
    there is no C++ compiler, compiled variants are left out with a warning.
    """
    rows = []
    for batch in (1, 64):
        images = random_images(model, batch, 32)
        for name, variant in LADDER.items():
            if variant.graph and images.device.type != "cuda":
                continue
            try:
                with fresh_compiler():
                    call = create_call(model, images, variant)
                    row = time_calls(call, images.device, BUDGET_S, time_by)
            except RuntimeError as error:
                if not variant.compiled:
                    raise
                warnings.warn(str(error), stacklevel=2)
                continue
            rows.append({"variant": name, "batch": batch} | row)
    return add_speedups(_add_rates(pd.DataFrame(rows)))


def load_products(machine: str) -> pd.DataFrame:
    """Load the matrix products that research/low_precision.py measured in bf16 and fp8.

    Columns: shape, m, k, n, flop, by ("bf16", "fp8", "fp8 and conversion" of the activations),
    seconds, tflop_per_s, machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    table = recorded_table(machine, "low_precision")
    table = table[table["by"].isin(["bf16", "fp8", "fp8 and conversion"])]
    return table.assign(tflop_per_s=table["flop"] / table["seconds"] / 1e12)


def add_speedups(table: pd.DataFrame) -> pd.DataFrame:
    """Add the column `faster`: times as fast as fp32 with the same batch."""
    fp32 = table[table["variant"] == "fp32"].set_index("batch")["p50_s"]
    return table.assign(faster=table["batch"].map(fp32) / table["p50_s"])


def load_measurements(machine: str) -> pd.DataFrame:
    """Load what research/inference.py measured on a machine, a row per variant and batch.

    Columns: part ("mode", "ladder", or "batch", whose "compiled" also has a CUDA graph), variant,
    batch, p50_s, p99_s, calls, images_per_s, machine; peak_gib ("mode": above what the network
    needs); faster ("ladder", as in `time_ladder`); error and made_s (of scores, and until the
    first answer; research/inference.py explains them).

    Raises:
        ValueError: nothing was recorded there.
    """
    table = _add_rates(recorded_table(machine, "inference")).rename(columns={"way": "variant"})
    return table.join(add_speedups(table[table["part"] == "ladder"])["faster"])
