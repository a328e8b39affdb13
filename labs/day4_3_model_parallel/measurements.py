"""What recorded GPUs paid for sharing a network out: copies, shards, layers, stages."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from course.runs import recordings

if TYPE_CHECKING:
    import pandas as pd

    from course.runs.run import Run

PURPOSE = "parallel"
BESIDE = "ddp"  # what all others are compared with, at the same batch


def recorded(machine: str = "") -> dict[str, Run]:
    """The recorded runs of this lab on several GPUs, by their label.

    Empty, with a line that says so, where there is none.

    Args:
        machine: the one that recorded them; "": any that did, the last by name.
    """
    known = [machine] if machine else recordings.machines()
    found = {
        run.config.rung: run for name in known for run in recordings.recorded_runs(name, PURPOSE)
    }
    if not found:
        print(f"No network shared out is recorded{f' for {machine}' * bool(machine)} yet.")
    return found


def ways(runs: Mapping[str, Run]) -> pd.DataFrame:
    """Runs beside DDP at the same batch: a row a run, those without the trace of a step.

    Columns: batch (images of an update), images_per_s, of_ddp (that ÷ DDP's), peak_gib (of the
    rank with the highest), least_gib (of the one with the lowest), joules_per_image.
    """
    import pandas as pd

    shown = {name: run for name, run in runs.items() if not run.config.profile_steps}
    rows = {}
    for name, run in shown.items():
        peaks = [rank["peak_gib"] for rank in run.ranks]
        rows[name] = {
            "batch": run.config.batch_size,
            "images_per_s": run.record.images_per_s,
            "peak_gib": max(peaks),
            "least_gib": min(peaks),
            "joules_per_image": run.record.joules_per_image,
        }
    table = pd.DataFrame([*rows.values()], index=[*rows], columns=_COLUMNS)
    ddp = [name for name in table.index if name.startswith(BESIDE)]
    beside = table.loc[ddp].set_index("batch")["images_per_s"]
    table.insert(2, "of_ddp", table["images_per_s"] / table["batch"].map(beside))
    return table.sort_values(["batch", "images_per_s"], ascending=[True, False])


_COLUMNS = ["batch", "images_per_s", "peak_gib", "least_gib", "joules_per_image"]
