"""Searches over trainings that were recorded: a trial costs nothing, so many can be compared."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd

from course.jobs.trials.taking import sampler
from course.runs.run import Run
from labs.day3_3_large_batch.trainings import ends

FIELDS = ("lr", "batch_size")
TRIALS = 16
Point = dict[str, float]


class Recorded:
    """What was learned at each learning rate and batch size: between recorded ones, in line.

    Attributes:
        cells: val_top1, learning rates down, batch sizes across.
    """

    def __init__(self, runs: Iterable[Run]) -> None:
        table = ends(run for run in runs if run.record.epochs)
        named = "sgd-" + table["batch_size"].astype(str) + "-" + table["lr"].map("{:g}".format)
        self.machine = table["machine"].iloc[0]
        self.cells = table[table["run"] == named].pivot_table("val_top1", "lr", "batch_size")
        self._scales = [np.log(np.array(axis, float)) for axis in self.cells.axes]

    def ends(self, name: str) -> tuple[float, float]:
        """The least and the largest value of a field."""
        axis = self.cells.axes[FIELDS.index(name)]
        return float(axis[0]), float(axis[-1])

    def __call__(self, point: Point) -> float:
        """The accuracy at these values of FIELDS; others change nothing."""
        values = self.cells.to_numpy()
        for name, scale in zip(FIELDS, self._scales):  # along the rates, then along the batches
            place = np.interp(np.log(point[name]), scale, np.arange(len(scale)))
            low = min(int(place), len(scale) - 2)
            values = values[low] + (place - low) * (values[low + 1] - values[low])
        return float(values)


def points(name: str, recorded: Recorded, *, idle: int = 0, seed: int = 0) -> pd.DataFrame:
    """The trials of one search, in their order: lr, batch_size, val_top1, best (so far).

    Args:
        name: "grid", "random" or "tpe".
        idle: so many further fields are searched, which change nothing.
    """
    spans = {field: recorded.ends(field) for field in FIELDS}
    spans |= {f"idle_{number}": (1.0, 100.0) for number in range(idle)}
    found = (_grid if name == "grid" else partial(_drawn, name))(spans, recorded, seed)
    table = pd.DataFrame(found)[[*FIELDS]].assign(val_top1=[recorded(each) for each in found])
    return table.assign(best=table["val_top1"].cummax())


def _grid(spans: dict[str, tuple[float, float]], _recorded: Any, seed: int) -> list[Point]:
    """As many values of each field as TRIALS allow, in the middles of equal parts, in any order."""
    each = round(TRIALS ** (1 / len(spans)))
    shares = (np.arange(each) + 0.5) / each
    values = {name: low * (high / low) ** shares for name, (low, high) in spans.items()}
    every = [dict(zip(values, map(float, chosen))) for chosen in product(*values.values())]
    return [every[place] for place in np.random.default_rng(seed).permutation(len(every))]


def _drawn(
    name: str,
    spans: dict[str, tuple[float, float]],
    value: Callable[[Point], float],
    seed: int,
) -> list[Point]:
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    log = partial(optuna.distributions.FloatDistribution, log=True)
    space = {field: log(low, high) for field, (low, high) in spans.items()}
    study, found = optuna.create_study(direction="maximize"), []
    for number in range(TRIALS):
        study.sampler = sampler(name, seed, number)
        trial = study.ask(space)
        study.tell(trial, value(trial.params))
        found.append(trial.params)
    return found


def replayed(recorded: Recorded, *, times: int = 40) -> pd.DataFrame:
    """What TRIALS trials find, searched so many times with different luck.

    Columns: sampler, fields (2, and 4 of which two change nothing), mean, worst_tenth, best_tenth.
    """
    rows = []
    for idle in (0, 2):
        for name in ("grid", "random", "tpe"):
            found = [
                points(name, recorded, idle=idle, seed=seed)["best"].iloc[-1]
                for seed in range(1 if name == "grid" else times)
            ]
            low, high = np.quantile(found, [0.1, 0.9])
            row = {"sampler": name, "fields": len(FIELDS) + idle, "mean": np.mean(found)}
            rows.append(row | {"worst_tenth": low, "best_tenth": high})
    return pd.DataFrame(rows)
