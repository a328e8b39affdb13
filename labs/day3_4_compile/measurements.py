"""What was measured of the compiler: its modes, what compiling takes, new shapes, rounding."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from course.runs import recordings
from course.runs.run import Run
from labs.day3_4_compile.compiler_output import Kernel

PART = "compile"  # of a machine's index: what research/compile.py measured there


def compile_s(run: Run) -> float:
    """Seconds that a run's first steps took beyond as many usual ones: compiling, above all.

    Those are the `warmup_steps`, and a usual one the median of the others. A first step also
    chooses algorithms and asks for memory, which one that is not compiled does, too.

    Raises:
        ValueError: the run has no such steps, or none at all.
    """
    steps = run.steps
    if steps.empty:
        raise ValueError(
            f"{run} has no steps: it is {run.status}. Mend what its check or explain(run) tells, "
            f"then launch it again"
        )
    first = steps["step"] < run.config.warmup_steps
    if not first.any() or first.all():
        raise ValueError(f"{run} has no steps before others: launch it with warmup_steps=1")
    usual = steps.loc[~first, "step_s"].median()
    return float((steps.loc[first, "step_s"] - usual).sum())


def modes(runs: Iterable[Run]) -> pd.DataFrame:
    """One row a run: what a mode of the compiler brings, and takes.

    Columns: mode ("eager" where nothing is compiled), batch_size, images_per_s, step_ms,
    peak_gib (of tensors), reserved_gib (with what is kept for them), first_s (of the first
    steps, see `compile_s`), machine.
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


def losses(run: Run, other: Run) -> pd.DataFrame:
    """How far a run's losses are from another one's, step by step.

    Columns: step, loss, difference (relative to the other's).
    """
    both = [each.steps.set_index("step")["loss"].astype(float) for each in (run, other)]
    table = pd.concat(both, axis=1, keys=["loss", "other"], join="inner").reset_index()
    table["difference"] = table["loss"] / table.pop("other") - 1
    return table


def recorded_part(machine: str, part: str) -> dict[str, Any]:
    """What research/compile.py measured on another machine.

    Args:
        part: "tail", one residual block's end, or "shapes", steps with new shapes.

    Raises:
        ValueError: nothing of the kind is recorded there; the message lists who has it.
    """
    return recordings.part(machine, PART)[part]


def recorded_kernel(machine: str) -> Kernel:
    """The kernel that a machine's compiler made of a residual block's end (`Tail`)."""
    return Kernel(**recorded_part(machine, "tail")["kernels"][0])


def shapes(machine: str) -> pd.DataFrame:
    """First steps with new shapes, where PyTorch's cache on disk had nothing for them.

    Columns: course ("growing": images grow; "ending": an epoch's last batch is smaller), dynamic
    (None or False, as torch.compile has it), images, image_px, graphs (made in that step),
    first_s, ms (of later steps). The first shape of a course has the same graph however dynamic
    is set: where it was in the cache, the course with None tells its seconds.
    """
    table = pd.DataFrame(recorded_part(machine, "shapes")["rows"])
    key = ["course", "dynamic", "images", "image_px"]
    fresh = table[~table["in_cache"]].drop_duplicates(key)
    first = fresh[fresh["course"].eq("growing") & fresh["dynamic"].isna()].iloc[[0]]
    table = pd.concat([fresh, first.assign(dynamic=False)])
    table["dynamic"] = table["dynamic"].map(lambda each: None if pd.isna(each) else bool(each))
    return table.drop(columns="in_cache").sort_values("image_px", kind="stable", ignore_index=True)
