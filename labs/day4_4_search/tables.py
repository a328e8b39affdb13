"""What a search found and what it took, as tables: all of it is read from its runs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from course.jobs.trials.taking import is_pruned
from course.runs.run import Run
from labs.day4_4_search.studies import Search

if TYPE_CHECKING:
    from optuna import Study

TOLD = ("search", "trial", "state", "val_top1", "epochs", "device_s", "joules", "machine")
FEWEST = 4  # trials to tell from which fields matter


def runs_of(source: Search | Iterable[Run]) -> list[Run]:
    """The runs of a search, or those that are trials among runs, recorded ones for instance."""
    found = source.runs if isinstance(source, Search) else source
    return [run for run in found if run.launched.get("trial")]


def trials(source: Search | Iterable[Run]) -> pd.DataFrame:
    """The trials, in their order: one row each.

    Columns: search, trial, state (complete, pruned, or how the run ended otherwise), val_top1 (the
    last that was reported), epochs, the fields that were searched, device_s (from the run's
    start to its end), joules (of its training steps, where a device counts them), machine.
    """
    rows = []
    for run in runs_of(source):
        asked, record = run.launched["trial"], run.record
        if record is None:
            continue
        row = {"search": _label(run), "trial": asked["number"], "state": state(run)}
        row |= {"val_top1": record.val_top1, "epochs": len(record.epochs), **asked["params"]}
        row |= {"device_s": record.wall_s, "joules": _joules(run), "machine": record.machine}
        rows.append(row)
    return pd.DataFrame(rows)


def state(run: Run) -> str:
    """How a trial ended."""
    if run.status == "ok":
        return "complete"
    return "pruned" if run.record and is_pruned(run.record) else run.status


def _label(run: Run) -> str:
    return run.config.rung.rpartition("-")[0]


def _joules(run: Run) -> float:
    """Of the steps that were made, after the device's own counter; NaN: it has none."""
    each, record = run.record.joules_per_image, run.record
    steps = record.config.get("steps", 0) * len(record.epochs)
    return each * steps * record.config["batch_size"] if each else np.nan


def epochs(source: Search | Iterable[Run]) -> pd.DataFrame:
    """How each trial went, epoch by epoch: search, trial, state, epoch (from 1), val_top1."""
    rows = [
        {
            "search": _label(run),
            "trial": run.launched["trial"]["number"],
            "state": state(run),
            "epoch": number,
            "val_top1": told["val_top1"],
            "machine": run.record.machine,
        }
        for run in runs_of(source)
        if run.record
        for number, told in enumerate(run.record.epochs, 1)
    ]
    return pd.DataFrame(rows)


def progress(table: pd.DataFrame) -> pd.DataFrame:
    """The best so far after each trial, and what it took until then.

    Columns: search, trial, state, machine, best (NaN before the first complete one), and device_s
    and joules, added up.

    Args:
        table: what `trials` returns.
    """
    found = []
    for _, rows in table.groupby("search", sort=False):
        done = rows["val_top1"].where(rows["state"] == "complete")
        sums = rows[["device_s", "joules"]].cumsum()
        found.append(
            rows[["search", "trial", "state", "machine"]].assign(best=done.cummax().ffill(), **sums)
        )
    return pd.concat(found, ignore_index=True)


def costs(table: pd.DataFrame) -> pd.DataFrame:
    """What each search took, and what it gained over its first trial: a row each.

    Columns: search, trials, pruned, best, gain (in accuracy; NaN where no trial with the first
    one's values came to its end), device_h, kilojoules (NaN where not measured), gain_per_kj,
    machine.

    Args:
        table: what `trials` returns.
    """
    rows = []
    for name, own in table.groupby("search", sort=False):
        best = own.loc[own["state"] == "complete", "val_top1"].max()
        gain, spent = best - _first(own), own["joules"].sum(min_count=1) / 1e3
        rows.append(
            {
                "search": name,
                "trials": len(own),
                "pruned": int((own["state"] == "pruned").sum()),
                "best": best,
                "gain": gain,
                "device_h": own["device_s"].sum() / 3600,
                "kilojoules": spent,
                "gain_per_kj": gain / spent,
                "machine": own["machine"].iloc[0],
            }
        )
    return pd.DataFrame(rows)


def _first(own: pd.DataFrame) -> float:
    """The accuracy by the first values: of trial 0, or where that was lost, of its repeat."""
    values = own.drop(columns=[*TOLD, *own.columns[own.isna().all()]], errors="ignore")
    same = values.eq(values.iloc[0]).all(axis=1) & own["state"].eq("complete")
    return own.loc[same, "val_top1"].iloc[0] if same.any() and own["trial"].iloc[0] == 0 else np.nan


def importance(source: Search | Iterable[Run]) -> pd.Series:
    """Which share of what trials differ in comes from each field (functional ANOVA, by trees).

    Raises:
        ValueError: too few trials were trained to their end.
    """
    from optuna import importance as optuna_importance

    study = _in_memory(runs_of(source))
    if len(study.trials) < FEWEST:
        raise ValueError(f"{len(study.trials)} complete trials: {FEWEST} are needed, better 20")
    evaluator = optuna_importance.FanovaImportanceEvaluator(seed=0)
    found = optuna_importance.get_param_importances(study, evaluator=evaluator)
    return pd.Series(found, name="share")


def _in_memory(runs: Iterable[Run]) -> Study:
    import optuna
    from optuna.distributions import json_to_distribution

    study = optuna.create_study(direction="maximize")
    for run in runs:
        if state(run) == "complete":
            asked = run.launched["trial"]
            space = {name: json_to_distribution(text) for name, text in asked["space"].items()}
            study.add_trial(
                optuna.trial.create_trial(
                    params=asked["params"], distributions=space, value=run.record.val_top1
                )
            )
    return study


def tested(source: Search | Iterable[Run]) -> pd.DataFrame:
    """Of each trial that was tested: search, trial, seed, val_top1, test_top1, machine."""
    rows = [
        {
            "search": _label(run),
            "trial": run.launched["trial"]["number"],
            "seed": run.config.seed,
            "val_top1": run.record.val_top1,
            **run.test,
            "machine": run.record.machine,
        }
        for run in runs_of(source)
        if run.test
    ]
    return pd.DataFrame(rows)
