"""Memory and speed over the batch size, up to a batch that does not fit."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from course import Run
from course.lab import all_settings, from_dict
from labs.memory.peaks import finished

TEXTS = ["status", "machine", "memory_kind"]
NUMBERS = ["peak_gib", "images_per_s", "images_per_s_q1", "images_per_s_q3"]
SETTINGS = ["batch_size", "model", "precision", "channels_last", "memory_gib"]
# Runs on one line have the same of these.
COMMON = ["machine", "memory_kind", "model", "precision", "channels_last", "inputs"]


@dataclass(frozen=True)
class Fit:
    """Peak memory as a straight line over the batch size."""

    fixed_gib: float  # weights, optimizer state, work space; on a CPU, also libraries
    per_image_gib: float  # mostly activations
    largest_error: float  # distance of a run from the line ÷ the run's peak
    sizes: int  # number of batch sizes; two are always on a line

    def peak_gib(self, batch_size: int) -> float:
        """Return the line's peak at a batch size."""
        return self.fixed_gib + self.per_image_gib * batch_size

    def largest_batch(self, limit_gib: float) -> int:
        """Return the largest batch whose peak, by the line, is within the limit; 0 if none is.

        A run may need more: by the line's error, and by what an allocator reserves but never uses.
        """
        return max(0, math.floor((limit_gib - self.fixed_gib) / self.per_image_gib))


def sweep(runs: Iterable[Run] | pd.DataFrame) -> pd.DataFrame:
    """Return a row per run, sorted by batch size.

    Columns: batch_size, model, precision, channels_last, memory_gib (the limit; 0: none), inputs
    (data and image size), status (ok, oom, …), machine, memory_kind, peak_gib, images_per_s with
    quartiles _q1 and _q3. A missing measurement is NaN. The peak of a run that ran out of memory
    is its memory when the next allocation failed.

    Args:
        runs: finished runs, or a table of records from `recorded`.

    Raises:
        ValueError: there are no runs, or one has not finished.
    """
    rows = finished(runs)
    if not rows:
        raise ValueError("a sweep needs runs: launch_all(script, vary(config, batch_size=[…]))")
    configs = pd.DataFrame(all_settings(from_dict(row["config"])) for row in rows)
    inputs = configs["data"] + " data, " + configs["image_px"].astype(str) + " px"
    measurements = pd.DataFrame(rows).reindex(columns=[*TEXTS, *NUMBERS])
    table = configs[SETTINGS].assign(inputs=inputs).join(measurements)
    return table.astype(dict.fromkeys(NUMBERS, float)).sort_values("batch_size", ignore_index=True)


def fit(table: pd.DataFrame) -> Fit:
    """Fit a line (least squares) to the peaks of the successful runs.

    Args:
        table: from `sweep`.

    Raises:
        ValueError: fewer than two batch sizes, runs that differ in more than the batch size, or
            peaks that do not grow with it.
    """
    ok = table[(table["status"] == "ok") & table["peak_gib"].notna()]
    sizes = ok["batch_size"].nunique()
    if sizes < 2:
        raise ValueError(
            f"a line needs successful runs at two batch sizes or more, and there are {sizes}: run "
            "smaller batches"
        )
    values = {name: sorted(map(str, ok[name].unique())) for name in COMMON}
    if different := {name: several for name, several in values.items() if len(several) > 1}:
        raise ValueError(f"select runs that differ only in their batch size, not in {different}")
    per_image, fixed = np.polyfit(ok["batch_size"], ok["peak_gib"], 1)
    if per_image <= 0:
        raise ValueError("peak memory does not grow with the batch: run batches further apart")
    error = (fixed + per_image * ok["batch_size"]) / ok["peak_gib"] - 1
    return Fit(float(fixed), float(per_image), float(error.abs().max()), sizes)
