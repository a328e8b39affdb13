"""Energy of runs, as far as a device counted it, and the CO2 of a grid's electricity."""

from __future__ import annotations

import math
from collections.abc import Iterable

import pandas as pd

from course import Run
from labs.tracking.counters import J_PER_KWH

EMBER = "Ember, yearly electricity data, by Our World in Data"
EMBER_STATISTA = "Ember, July 2024, by Statista 943137"
# Grams of CO2 equivalents per kWh in 2023, over a plant's whole life.
GRIDS = pd.DataFrame(
    [
        ("Norway", 30, EMBER_STATISTA),
        ("France", 56, EMBER),
        ("Germany", 381, EMBER),
        ("world", 481, EMBER_STATISTA),
        ("China", 582, EMBER),
        ("India", 713, EMBER),
    ],
    columns=["grid", "g_per_kwh", "source"],
)
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


def carbon(
    runs: Run | Iterable[Run], *, g_per_kwh: float, pue: float = 1.0, host: float = 1.0
) -> float:
    """Return grams of CO2 equivalents of runs, without manufacturing.

    Args:
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
    runs = [runs] if isinstance(runs, Run) else list(runs)
    if uncounted := [run.name for run in runs if math.isnan(joules(run))]:
        raise ValueError(
            f"the joules of {', '.join(uncounted[:4])} were not counted "
            f"(runs: {len(uncounted)}): only GPUs with an energy counter have them. Leave them out"
        )
    return sum(map(joules, runs)) / J_PER_KWH * host * pue * g_per_kwh


def carbon_by_grid(runs: Run | Iterable[Run], *, pue: float, host: float) -> pd.DataFrame:
    """Return the grams of CO2 on each grid of `GRIDS`.

    Columns: grid, g_per_kwh, source, gpus, host and building (grams), grams (their sum).
    """
    grams = GRIDS["g_per_kwh"] * carbon(runs, g_per_kwh=1, pue=pue, host=host)
    node = grams / pue
    gpus = node / host
    return GRIDS.assign(gpus=gpus, host=node - gpus, building=grams - node, grams=grams)
