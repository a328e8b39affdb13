"""Tables of a search's trials: results and epochs."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from course import Run
from labs.search.trial_queue import is_pruned


def _trial_runs(runs: Iterable[Run]) -> list[Run]:
    """Return the trials among runs that have a record."""
    return [run for run in runs if run.launched.get("trial") and run.record]


def _row(run: Run) -> dict:
    """Return the columns that all tables of trials have."""
    state = "pruned" if is_pruned(run.record) else run.status
    return {
        "search": run.config.rung.rpartition("-")[0],
        "trial": run.launched["trial"]["number"],
        "state": "complete" if state == "ok" else state,
    }


def trials_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row for each trial.

    Columns: search, trial, state (complete, pruned, or the run's status), val_top1 (the last one),
    epochs, the searched fields, device_s (of the run), machine.
    """
    return pd.DataFrame(
        _row(run)
        | {"val_top1": run.record.val_top1, "epochs": len(run.record.epochs)}
        | run.launched["trial"]["params"]
        | {"device_s": run.record.wall_s, "machine": run.record.machine}
        for run in _trial_runs(runs)
    )


def epochs_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row for each epoch: search, trial, state, machine, epoch (from 1), val_top1."""
    return pd.DataFrame(
        _row(run) | {"machine": run.record.machine, "epoch": number, "val_top1": epoch["val_top1"]}
        for run in _trial_runs(runs)
        for number, epoch in enumerate(run.record.epochs, 1)
    )
