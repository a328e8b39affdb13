"""A sweep over batch sizes: what memory and speed do as the batch grows, until it fits no more."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from course.analysis.run_rows import finished
from course.config import from_dict
from course.runs.run import Run

MEASURED = (
    "status",
    "peak_gib",
    "images_per_s",
    "images_per_s_q1",
    "images_per_s_q3",
    "machine",
    "memory_kind",
)
SETTINGS = ("batch_size", "model", "precision", "channels_last", "memory_gib")
# What must be alike for runs to lie on one line.
ALIKE = ("machine", "memory_kind", "model", "precision", "channels_last", "inputs")


@dataclass(frozen=True)
class Fit:
    """Peak memory as a straight line over the batch size."""

    fixed_gib: float  # at any batch: weights, optimizer state, work space; on a CPU, libraries too
    per_image_gib: float  # mostly the activations of one image
    misfit: float  # the largest distance of a run from the line, over the run's own peak
    sizes: int = 0  # batch sizes that it was fitted to; two lie on any line

    def at(self, batch_size: int) -> float:
        """Peak GiB at a batch size, on the line."""
        return self.fixed_gib + self.per_image_gib * batch_size

    def largest_batch(self, limit_gib: float) -> int:
        """The largest batch whose peak is within the limit; 0 where not even one image fits.

        What the line says: a run there may need more, by `misfit` and by what an allocator
        reserves without using it.
        """
        return max(0, math.floor((limit_gib - self.fixed_gib) / self.per_image_gib))

    def __str__(self) -> str:
        return (
            f"{self.fixed_gib:.2f} GiB at any batch, and {self.per_image_gib * 1024:.1f} MiB more "
            f"for each image; the runs lie within {self.misfit:.1%} of this line"
        )


def sweep(runs: Iterable[Run] | pd.DataFrame) -> pd.DataFrame:
    """The runs of a sweep, one row each, by batch size.

    Columns: batch_size, model, precision, channels_last, memory_gib (the limit that was
    set; 0: none), inputs (data and image size), status (ok, oom, …), peak_gib, images_per_s with
    _q1 and _q3, machine, memory_kind. What a run did not measure is NaN. The peak of a run that
    ran out of memory is what it held when it was refused more.

    Args:
        runs: runs that are over, or a table of records as `recorded` returns.

    Raises:
        ValueError: no runs, or one that is not over.
    """
    table = []
    for row in finished(runs):
        config = from_dict(row["config"])
        settings = {name: getattr(config, name) for name in SETTINGS}
        inputs = f"{config.data} data, {config.image_px} px"
        table.append({**settings, "inputs": inputs, **{name: row.get(name) for name in MEASURED}})
    if not table:
        raise ValueError("a sweep needs runs: launch_all(script, vary(config, batch_size=[…]))")
    numbers = [name for name in MEASURED if name.startswith(("peak", "images"))]
    table = pd.DataFrame(table).astype(dict.fromkeys(numbers, float))
    return table.sort_values("batch_size", ignore_index=True)


def fit(table: pd.DataFrame) -> Fit:
    """The straight line (least squares) through the peaks of the runs that are ok.

    Args:
        table: what `sweep` returns.

    Raises:
        ValueError: fewer than two batch sizes, runs that are not alike, or a peak that does not
            grow with the batch.
    """
    ok = table[(table["status"] == "ok") & table["peak_gib"].notna()]
    found = ok["batch_size"].nunique()
    if found < 2:
        raise ValueError(
            f"a line needs runs at two batch sizes or more that ended ok, and there are {found}: "
            f"run smaller batches"
        )
    differing = {name: sorted(map(str, set(ok[name]))) for name in ALIKE if ok[name].nunique() > 1}
    if differing:
        raise ValueError(
            f"these runs differ in more than their batch: {differing}. Choose those that are alike"
        )
    growth, fixed = np.polyfit(ok["batch_size"], ok["peak_gib"], 1)
    if growth <= 0:
        raise ValueError(
            "peak memory does not grow with the batch here: run batches that lie further apart"
        )
    distance = (fixed + growth * ok["batch_size"] - ok["peak_gib"]).abs() / ok["peak_gib"]
    return Fit(float(fixed), float(growth), float(distance.max()), found)
