"""Compare data, tensor and pipeline parallelism, as recorded on GPUs."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from course import Run, recorded_runs
from course.runs import recordings


def parallel_runs() -> dict[str, Run]:
    """Return the recorded runs of this lab, by label."""
    return {
        run.config.rung: run
        for machine in recordings.machines()
        for run in recorded_runs(machine, "parallel")
    }


def compare_with_ddp(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Compare runs with DDP at the same batch, without those that traced a step.

    Columns: batch (images per update), images_per_s, of_ddp (the ratio), peak_gib and least_gib (of
    the ranks with the highest and the lowest peak), joules_per_image.
    """
    rows = {}
    for name, run in runs.items():
        if run.config.profile_steps:
            continue
        peaks = [rank["peak_gib"] for rank in run.ranks]
        rows[name] = {
            "batch": run.config.batch_size,
            "images_per_s": run.record.images_per_s,
            "peak_gib": max(peaks),
            "least_gib": min(peaks),
            "joules_per_image": run.record.joules_per_image,
        }
    table = pd.DataFrame.from_dict(rows, orient="index")
    ddp = table[table.index.str.startswith("ddp")].set_index("batch")["images_per_s"]
    table.insert(2, "of_ddp", table["images_per_s"] / table["batch"].map(ddp))
    return table.sort_values(["batch", "images_per_s"], ascending=[True, False])
