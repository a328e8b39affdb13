"""Simulate searches on recorded training runs: trials cost nothing, so many can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product

import numpy as np
import pandas as pd

from course import Run, recorded_runs
from labs.large_batch.measurements import final_epochs
from labs.search.trial_queue import SAMPLERS, sampler

FIELDS = ("lr", "batch_size")
TRIALS = 16
Point = dict[str, float]


def grid_runs(runs: Iterable[Run]) -> list[Run]:
    """Select large_batch's grid: one training by plain SGD per learning rate and batch size."""
    labels = {run: f"sgd-{run.config.batch_size}-{run.config.lr:g}" for run in runs}
    return [run for run, label in labels.items() if run.config.rung == label]


class AccuracyGrid:
    """The accuracies of large_batch's grid on an H200, interpolated linearly.

    Attributes:
        cells: val_top1, a row per learning rate, a column per batch size.
        machine: the machine that recorded them.
    """

    def __init__(self) -> None:
        table = final_epochs(grid_runs(recorded_runs("nvidia-h200", "learning")))
        self.machine = table["machine"].iloc[0]
        self.cells = table.pivot_table("val_top1", "lr", "batch_size")

    def range_of(self, field: str) -> tuple[float, float]:
        """Return the smallest and the largest value of a field."""
        axis = self.cells.axes[FIELDS.index(field)]
        return float(axis[0]), float(axis[-1])

    def __call__(self, point: Point) -> float:
        """Return the accuracy at a learning rate and batch size; other fields have no effect."""
        values = self.cells.to_numpy()
        for field, axis in zip(FIELDS, self.cells.axes):
            steps = np.arange(len(axis))
            place = np.interp(np.log(point[field]), np.log(axis.to_numpy(float)), steps)
            low = min(int(place), len(axis) - 2)
            values = values[low] + (place - low) * (values[low + 1] - values[low])
        return float(values)


def simulate_search(name: str, grid: AccuracyGrid, *, idle: int = 0, seed: int = 0) -> pd.DataFrame:
    """Return the trials of one search: lr, batch_size, val_top1.

    Args:
        name: "grid", "random" or "tpe".
        idle: the number of further fields to search, which have no effect.
    """
    ranges = {field: grid.range_of(field) for field in FIELDS}
    ranges |= {f"idle_{number}": (1.0, 100.0) for number in range(idle)}
    if name == "grid":
        points = _grid_points(ranges, seed)
    else:
        points = _sample_points(name, ranges, grid, seed)
    return pd.DataFrame(points)[[*FIELDS]].assign(val_top1=[grid(point) for point in points])


def _grid_points(ranges: dict[str, tuple[float, float]], seed: int) -> list[Point]:
    """Return a grid of about TRIALS points, in random order."""
    count = round(TRIALS ** (1 / len(ranges)))
    shares = (np.arange(count) + 0.5) / count
    values = [[float(v) for v in low * (high / low) ** shares] for low, high in ranges.values()]
    points = [dict(zip(ranges, point)) for point in product(*values)]
    return [points[place] for place in np.random.default_rng(seed).permutation(len(points))]


def _sample_points(
    name: str,
    ranges: dict[str, tuple[float, float]],
    value: Callable[[Point], float],
    seed: int,
) -> list[Point]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    logarithmic = partial(optuna.distributions.FloatDistribution, log=True)
    space = {field: logarithmic(low, high) for field, (low, high) in ranges.items()}
    study = optuna.create_study(direction="maximize")
    for number in range(TRIALS):
        study.sampler = sampler(name, seed, number)
        trial = study.ask(space)
        study.tell(trial, value(trial.params))
    return [trial.params for trial in study.trials]


def compare_samplers(*, repeats: int = 40) -> pd.DataFrame:
    """Return the mean best accuracy of searches of TRIALS trials with different seeds.

    A row per sampler. Columns: 2 fields; 4 fields, of which two have no effect.
    """
    grid = AccuracyGrid()

    def mean_best(name: str, idle: int) -> float:
        seeds = range(1 if name == "grid" else repeats)
        searches = (simulate_search(name, grid, idle=idle, seed=seed) for seed in seeds)
        return float(np.mean([search["val_top1"].max() for search in searches]))

    columns = {f"{len(FIELDS) + idle} fields": idle for idle in (0, 2)}
    rows = {name: {c: mean_best(name, idle) for c, idle in columns.items()} for name in SAMPLERS}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("sampler")
