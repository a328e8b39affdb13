"""Read what recorded runs and research/compile.py measured of the compiler."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

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

    Columns: mode ("eager" if not compiled), batch_size, images_per_s, step_ms, peak_gib (of
    tensors), reserved_gib, first_s (see `compile_s`), machine.
    """
    return pd.DataFrame(
        {
            "mode": run.config.compile or "eager",
            "batch_size": run.config.batch_size,
            "images_per_s": run.record.images_per_s,
            "step_ms": run.record.step_s * 1e3,
            "peak_gib": run.record.peak_gib,
            "reserved_gib": run.record.reserved_gib,
            "first_s": compile_s(run),
            "machine": run.record.machine,
        }
        for run in runs
    )


def compare_losses(run: Run, reference: Run) -> pd.DataFrame:
    """Return step, loss and difference (relative to the reference's loss)."""
    columns = [run_.steps.set_index("step")["loss"].astype(float) for run_ in (run, reference)]
    table = pd.concat(columns, axis=1, keys=["loss", "reference"], join="inner").reset_index()
    table["difference"] = table["loss"] / table.pop("reference") - 1
    return table


def recorded_part(machine: str, part: str) -> dict[str, Any]:
    """Return what research/compile.py measured on a recorded machine.

    Args:
        part: "tail", one residual block's end, or "shapes", steps with new shapes.
    """
    return recordings.part(machine, "compile")[part]


def recorded_kernel(machine: str) -> Kernel:
    """Return the kernel that a recorded machine's compiler wrote for a `BlockEnd`."""
    return Kernel(**recorded_part(machine, "tail")["kernels"][0])
