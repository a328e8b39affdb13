"""Read what recorded runs and research/compile.py measured of the compiler."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from course import Run
from course.runs import recordings
from labs.compile.compiler import Kernel


def compile_s(run: Run) -> float:
    """Return how many seconds longer a run's warm-up steps took than its median step.

    Most of it is compiling. The first step also selects algorithms and allocates memory, which
    a run that is not compiled does as well.

    Raises:
        ValueError: the run has no steps.
    """
    steps = run.steps
    if steps.empty:
        raise ValueError(
            f"{run} has no steps: its status is {run.status}. Fix what its check or run.explain() "
            "reports, then launch it again."
        )
    first = steps["step"] < run.config.warmup_steps
    usual = steps.loc[~first, "step_s"].median()
    return float((steps.loc[first, "step_s"] - usual).sum())


def modes_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row for each run, by the compiler's mode.

    Columns: mode ("eager" if not compiled), batch_size, images_per_s, step_ms, first_s (see
    `compile_s`), reserved_gib.
    """
    return pd.DataFrame(
        {
            "mode": run.config.compile or "eager",
            "batch_size": run.config.batch_size,
            "images_per_s": run.record.images_per_s,
            "step_ms": run.record.step_s * 1e3,
            "first_s": compile_s(run),
            "reserved_gib": run.record.reserved_gib,
        }
        for run in runs
    )


@dataclass(frozen=True)
class RecordedTail:
    """A residual block's end on a recorded machine, eager and compiled.

    ms: by version. differ: share of the values that differ from eager's. kernel: the compiler's.
    """

    ms: dict[str, float]
    differ: dict[str, float]
    kernel: Kernel


def recorded_tail(machine: str) -> RecordedTail:
    """Return what research/compile.py measured of a block's end on a recorded machine."""
    part = recordings.part(machine, "compile")["tail"]
    return RecordedTail(part["ms"], part["differ"], Kernel(**part["kernels"][0]))
