"""What runs have taken: device hours and joules, as far as a device counted them."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from course.runs.recordings import machines, recorded_runs
from course.runs.run import Run

J_PER_KWH = 3.6e6


def joules(run: Run) -> float:
    """What the devices of a run took, from its start to its end; NaN: nobody counted it.

    The watts that a GPU's own counter gave for the measured steps, times all of the run's seconds
    and all of its GPUs. It is too much by what they draw less while the run starts and validates,
    and too little by all that is not the GPU: the host, its network and disks, and the cooling.
    """
    record = run.record
    if record is None or not record.watts or not record.wall_s:
        return math.nan
    return record.watts * record.gpus * record.wall_s


def bill(runs: Iterable[Run]) -> pd.DataFrame:
    """What runs took, by why they were made, and all together.

    Columns: for, runs, counted (those of which a device counted the joules), device_h (hours times
    devices, of those whose time is known) and kWh (of the counted); NaN where nothing is known.
    """
    rows = [
        {
            "for": run.purpose or "my own",
            "runs": 1,
            "device_h": (run.record.wall_s or math.nan) * run.record.gpus / 3600,
            "kWh": joules(run) / J_PER_KWH,
        }
        for run in runs
        if run.record is not None
    ]
    table = pd.DataFrame(rows)
    table.insert(2, "counted", table["kWh"].notna().astype(int))
    sums = table.groupby("for").sum(min_count=1).sort_values("kWh", ascending=False)
    sums.loc["all"] = sums.sum()
    return sums.reset_index().astype({"runs": int, "counted": int})


def all_recorded() -> list[Run]:
    """Every run that the course ships, of every machine."""
    return [run for machine in machines() for run in recorded_runs(machine)]
