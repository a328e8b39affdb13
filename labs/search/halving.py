"""Successive halving, tried out on recorded training runs: training again costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
import pandas as pd

from course import Run, recorded_runs
from labs.search.replay import grid_runs

Train = Callable[[int, int], float]
Halving = Callable[[list[int], Train], int]
EPOCHS, FACTOR = (1, 3, 6), 3


def successive_halving(
    trials: Sequence[int], train: Train, epochs: Sequence[int] = EPOCHS, factor: int = FACTOR
) -> int:
    """Return the trial that is best after the last epoch.

    Jamieson and Talwalkar 2016, arXiv:1502.07943.

    Args:
        train: trains a trial until an epoch, and returns its accuracy after it.
        epochs: when trials are compared.
        factor: one of this many trials continues, and at least one.
    """
    for epoch in epochs:
        accuracies = {trial: train(trial, epoch) for trial in trials}
        ranked = sorted(accuracies, key=accuracies.get, reverse=True)
        trials = ranked[: max(1, len(ranked) // factor)]
    return trials[0]


class Replay:
    """Recorded training runs that a search may train again, epoch by epoch.

    Attributes:
        curves: the accuracy after each epoch, a row per trial.
        runs: the recorded runs, one per trial.
        trained: the last epoch of each trial that the search has trained.
        calls: trial and epoch of each call of `train`.
    """

    def __init__(self, curves: Sequence[Sequence[float]], runs: Sequence[Run] = ()) -> None:
        self.curves, self.runs = np.asarray(curves), runs
        self.trained: dict[int, int] = {}
        self.calls: list[tuple[int, int]] = []

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Replay:
        """Replay runs that have recorded the same number of epochs."""
        runs = list(runs)
        return cls([[epoch["val_top1"] for epoch in run.record.epochs] for run in runs], runs)

    @classmethod
    def of_grid(cls) -> Replay:
        """Replay large_batch's 36 runs on an H200: six learning rates at six batch sizes."""
        return cls.of(grid_runs(recorded_runs("nvidia-h200", "learning")))

    @classmethod
    def of_random_trials(cls) -> Replay:
        """Replay the random search on an H100."""
        runs = recorded_runs("nvidia-h100", "search")
        return cls.of(run for run in runs if run.config.rung.startswith("random"))

    def train(self, trial: int, epoch: int) -> float:
        """Train a trial until this epoch, from where it stopped, and return its accuracy there."""
        self.calls.append((trial, epoch))
        self.trained[trial] = max(epoch, self.trained.get(trial, 0))
        return float(self.curves[trial, epoch - 1])

    @property
    def epochs(self) -> int:
        """The epochs that all calls of `train` have trained."""
        return sum(self.trained.values())

    @property
    def trials(self) -> list[int]:
        """The numbers of all trials."""
        return list(range(len(self.curves)))

    def accuracy(self, trial: int) -> float:
        """Return a trial's accuracy after its last epoch, without training it."""
        return float(self.curves[trial, -1])

    def table(self, search: str) -> pd.DataFrame:
        """Return the trained epochs in the form of `epochs_table`."""
        last = self.curves.shape[1]
        return pd.DataFrame(
            {
                "search": search,
                "trial": trial,
                "state": "complete" if epochs == last else "pruned",
                "machine": self.runs[trial].record.machine if self.runs else "",
                "epoch": epoch,
                "val_top1": self.curves[trial, epoch - 1],
            }
            for trial, epochs in self.trained.items()
            for epoch in range(1, epochs + 1)
        )

    def rank_correlation(self) -> pd.Series:
        """Return how well the ranking after each epoch agrees with the final one (Spearman).

        1: the same ranking; 0: none of it.
        """
        epochs = range(1, self.curves.shape[1] + 1)
        ranks = pd.DataFrame(self.curves, columns=epochs).rank()
        return ranks.corr()[epochs[-1]].rename("rank correlation").rename_axis("epoch")
