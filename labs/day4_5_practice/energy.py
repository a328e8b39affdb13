"""Energy of runs, as far as a device counted it, and the CO2 of a grid's electricity."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import pandas as pd

from course.runs.recordings import machines, recorded_runs
from course.runs.run import Run

J_PER_KWH = 3.6e6


class Grid(NamedTuple):
    """A country's electricity: grams of CO2 equivalents per kWh, over a plant's whole life."""

    g_per_kwh: float
    year: int
    source: str


EMBER = "Ember, yearly electricity data, by Our World in Data"
EMBER_STATISTA = "Ember, July 2024, by Statista 943137"
GRIDS = {
    "Norway": Grid(30, 2023, EMBER_STATISTA),
    "France": Grid(56, 2023, EMBER),
    "Germany": Grid(381, 2023, EMBER),
    "world": Grid(481, 2023, EMBER_STATISTA),
    "China": Grid(582, 2023, EMBER),
    "India": Grid(713, 2023, EMBER),
}
PUE = 1.58  # a building's power over its computers': mean of Uptime Institute's survey, 2023
# A node's power over its GPUs'. Super Micro's node of MLPerf 4.0 drew 6.83 kW in total while 8 H100
# trained ResNet-50. They may draw 700 W each, so the factor is at least this.
HOST = 6.83 / (8 * 0.7)


def joules(run: Run) -> float:
    """Return the energy of a run's GPUs from its start to its end; NaN if not counted.

    The mean power of the measured steps counts for all of the run's seconds. This is too much for
    start and validation, and leaves out the host, its network and disks, and the cooling.
    """
    record = run.record
    if record is None or not record.watts or not record.wall_s:
        return math.nan
    return record.watts * record.gpus * record.wall_s


def energy_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Return the device hours and energy of runs, by purpose and in total.

    Columns: for, runs, counted (runs whose joules were counted), device_h, kWh (of the counted
    runs); NaN if unknown.
    """
    rows = [
        {
            "for": run.purpose or "my own",
            "runs": 1,
            "counted": int(joules(run) > 0),
            "device_h": (run.record.wall_s or math.nan) * run.record.gpus / 3600,
            "kWh": joules(run) / J_PER_KWH,
        }
        for run in runs
        if run.record is not None
    ]
    sums = pd.DataFrame(rows).groupby("for").sum(min_count=1).sort_values("kWh", ascending=False)
    sums.loc["all"] = sums.sum()
    return sums.reset_index().astype({"runs": int, "counted": int})


def all_recorded() -> list[Run]:
    """Return every run that the course ships."""
    return [run for machine in machines() for run in recorded_runs(machine)]


def carbon(
    energy: float | Run | Iterable[Run], *, g_per_kwh: float, pue: float = 1.0, host: float = 1.0
) -> float:
    """Return grams of CO2 equivalents of joules or runs, without manufacturing.

    Args:
        energy: joules of the GPUs, or runs.
        g_per_kwh: of the grid. Ask the site, or take a mean of `GRIDS`.
        pue: the building's power over its computers' (power usage effectiveness).
        host: the node's power over its GPUs'.

    Raises:
        ValueError: a run without counted joules, or an impossible factor.
    """
    if g_per_kwh < 0 or pue < 1 or host < 1:
        raise ValueError(
            f"g_per_kwh={g_per_kwh}, pue={pue}, host={host}: expected g_per_kwh of 0 or more, and "
            "pue and host of 1 or more"
        )
    if not isinstance(energy, int | float):
        runs = [energy] if isinstance(energy, Run) else list(energy)
        if uncounted := [run.name for run in runs if math.isnan(joules(run))]:
            raise ValueError(
                f"the joules of {', '.join(uncounted[:4])} were not counted "
                f"({len(uncounted)} runs). Leave them out, or pass joules"
            )
        energy = sum(map(joules, runs))
    return energy / J_PER_KWH * host * pue * g_per_kwh


def carbon_by_grid(energy: float | Run | Iterable[Run], *, pue: float, host: float) -> pd.DataFrame:
    """Return the grams of CO2 on each grid of `GRIDS`.

    Columns: grid, g_per_kwh, year, source, gpus, host and building (grams), grams (their sum).
    """
    rows = []
    for name, grid in GRIDS.items():
        gpus, node, grams = (
            carbon(energy, g_per_kwh=grid.g_per_kwh, **factors)
            for factors in ({}, {"host": host}, {"host": host, "pue": pue})
        )
        parts = {"gpus": gpus, "host": node - gpus, "building": grams - node, "grams": grams}
        rows.append({"grid": name, **grid._asdict(), **parts})
    return pd.DataFrame(rows)
