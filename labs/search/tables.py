"""Tables of a search's trials: results, epochs, costs, importance, holdout accuracy."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pandas as pd

from course import Run
from labs.search.studies import Search
from labs.search.trial_queue import is_pruned

COLUMNS = ("search", "trial", "state", "val_top1", "epochs", "device_s", "joules", "machine")


def _trial_runs(source: Search | Iterable[Run]) -> list[Run]:
    """Return the runs of a search, or the trials among runs, that have a record."""
    runs = source.runs if isinstance(source, Search) else source
    return [run for run in runs if run.launched.get("trial") and run.record]


def _row(run: Run) -> dict:
    """Return the columns that all tables of trials have."""
    state = "pruned" if is_pruned(run.record) else run.status
    return {
        "search": run.config.rung.rpartition("-")[0],
        "trial": run.launched["trial"]["number"],
        "state": "complete" if state == "ok" else state,
        "machine": run.record.machine,
    }


def trials_table(source: Search | Iterable[Run]) -> pd.DataFrame:
    """Return one row for each trial.

    Columns: search, trial, state (complete, pruned, or the run's status), val_top1 (the last one),
    epochs, the searched fields, device_s (of the run), joules (of its training steps; NaN where
    the device has no counter), machine.
    """
    rows = []
    for run in _trial_runs(source):
        record, joules = run.record, np.nan
        if record.joules_per_image:
            images = record.config["steps"] * len(record.epochs) * record.config["batch_size"]
            joules = record.joules_per_image * images
        row = _row(run)
        machine = row.pop("machine")
        row |= {"val_top1": record.val_top1, "epochs": len(record.epochs)}
        row |= run.launched["trial"]["params"]
        rows.append(row | {"device_s": record.wall_s, "joules": joules, "machine": machine})
    return pd.DataFrame(rows)


def epochs_table(source: Search | Iterable[Run]) -> pd.DataFrame:
    """Return one row for each epoch: search, trial, state, machine, epoch (from 1), val_top1."""
    return pd.DataFrame(
        _row(run) | {"epoch": number, "val_top1": epoch["val_top1"]}
        for run in _trial_runs(source)
        for number, epoch in enumerate(run.record.epochs, 1)
    )


def cost_table(table: pd.DataFrame) -> pd.DataFrame:
    """Return what each search cost, and how much it gained over its first trial's values.

    Columns: search, trials, pruned, best, gain (in accuracy; NaN if no trial with the first values
    is complete), device_h, kilojoules (NaN if not measured), gain_per_kj, machine.

    Args:
        table: from `trials_table`.
    """
    rows = []
    for name, trials in table.groupby("search", sort=False):
        best = trials.loc[trials["state"] == "complete", "val_top1"].max()
        gain = best - _first_accuracy(trials)
        kilojoules = trials["joules"].sum(min_count=1) / 1e3
        rows.append(
            {
                "search": name,
                "trials": len(trials),
                "pruned": int((trials["state"] == "pruned").sum()),
                "best": best,
                "gain": gain,
                "device_h": trials["device_s"].sum() / 3600,
                "kilojoules": kilojoules,
                "gain_per_kj": gain / kilojoules,
                "machine": trials["machine"].iloc[0],
            }
        )
    return pd.DataFrame(rows)


def _first_accuracy(trials: pd.DataFrame) -> float:
    """Return the accuracy of trial 0, or if that was lost, of its repetition."""
    values = trials.drop(columns=[*COLUMNS], errors="ignore").dropna(axis=1, how="all")
    same = values.eq(values.iloc[0]).all(axis=1) & trials["state"].eq("complete")
    if trials["trial"].iloc[0] != 0 or not same.any():
        return np.nan
    return trials.loc[same, "val_top1"].iloc[0]


def field_importance(source: Search | Iterable[Run]) -> pd.Series:
    """Return the share of the trials' differences that each field explains (functional ANOVA).

    Raises:
        ValueError: fewer than four complete trials.
    """
    import optuna
    from optuna.distributions import json_to_distribution

    study = optuna.create_study(direction="maximize")
    for run in _trial_runs(source):
        if run.status == "ok":
            trial = run.launched["trial"]
            space = {name: json_to_distribution(text) for name, text in trial["space"].items()}
            study.add_trial(
                optuna.trial.create_trial(
                    params=trial["params"], distributions=space, value=run.record.val_top1
                )
            )
    if len(study.trials) < 4:
        raise ValueError(
            f"{len(study.trials)} complete trials: expected at least 4, better 20. "
            "Call search again with more trials."
        )
    evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return pd.Series(shares, name="share")


def holdout_table(source: Search | Iterable[Run]) -> pd.DataFrame:
    """Return search, trial, state, machine, seed, val_top1 and test_top1 of each tested trial."""
    return pd.DataFrame(
        _row(run) | {"seed": run.config.seed, "val_top1": run.record.val_top1, **run.part("test")}
        for run in _trial_runs(source)
        if run.part("test")
    )
