"""From joules to grams of CO2: the same run on another grid is another run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd

from course.runs.run import Run
from labs.day4_5_practice.energy import J_PER_KWH, joules


@dataclass(frozen=True)
class Grid:
    """What a kilowatt-hour of a country's electricity stands for, from fuel to waste."""

    g_per_kwh: float  # CO2 equivalents, over a plant's whole life
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
PUE = 1.58  # a building's power over that of its computers: mean of Uptime Institute's survey, 2023
# A node's power over that of its GPUs. Super Micro's node of MLPerf 4.0 drew 6.83 kW as a whole
# while 8 H100 trained ResNet-50; they may draw 700 W each, so it is at least that.
HOST = 6.83 / (8 * 0.7)


def carbon(
    energy: float | Run | Iterable[Run], *, g_per_kwh: float, pue: float = 1.0, host: float = 1.0
) -> float:
    """Grams of CO2 equivalents that runs stand for; making the machine is not in them.

    Args:
        energy: joules of the GPUs, or the runs that took them.
        g_per_kwh: of the grid: ask the site, or take a mean of `GRIDS`.
        pue: the building's power over that of its computers (power usage effectiveness).
        host: the node's power over that of its GPUs.

    Raises:
        ValueError: a run whose joules nobody counted, or a factor that cannot be.
    """
    if g_per_kwh < 0 or pue < 1 or host < 1:
        raise ValueError("g_per_kwh is 0 or more; pue and host are 1 or more: they add to the GPUs")
    taken = _joules(energy)
    return taken / J_PER_KWH * host * pue * g_per_kwh


def _joules(energy: float | Run | Iterable[Run]) -> float:
    if isinstance(energy, int | float):
        return energy
    runs = [energy] if isinstance(energy, Run) else list(energy)
    if unknown := [run.name for run in runs if joules(run) != joules(run)]:
        raise ValueError(
            f"nobody counted the joules of {', '.join(unknown[:4])}"
            f"{' and others' * (len(unknown) > 4)}: leave those out, or give joules"
        )
    return sum(map(joules, runs))


def by_grid(energy: float | Run | Iterable[Run], *, pue: float, host: float) -> pd.DataFrame:
    """The grams of each grid of `GRIDS`, by what takes the energy.

    Columns: grid, g_per_kwh, year, gpus (grams), host, building, grams (all three), source.
    """
    rows = []
    for name, grid in GRIDS.items():
        gpus = carbon(energy, g_per_kwh=grid.g_per_kwh)
        node = carbon(energy, g_per_kwh=grid.g_per_kwh, host=host)
        grams = carbon(energy, g_per_kwh=grid.g_per_kwh, host=host, pue=pue)
        parts = {"gpus": gpus, "host": node - gpus, "building": grams - node}
        row = {"grid": name, "g_per_kwh": grid.g_per_kwh, "year": grid.year}
        rows.append(row | parts | {"grams": grams, "source": grid.source})
    return pd.DataFrame(rows)
