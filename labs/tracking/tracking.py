"""Runs as one table, selected by tags, and what goes along with their results."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pandas as pd

from course import Config, Run
from course.lab import all_settings
from labs.large_batch.configs import crops_config
from labs.tracking.trackers import tags

RESULTS = ("val_top1", "last_loss", "images_per_s")
# Columns that are no settings.
OTHER_COLUMNS = ("run", "machine", *RESULTS)


def tracking_config(*, quick: bool = True) -> Config:
    """Return the config of a short training on crops, whose label begins with `my-rates`."""
    size = {"val_images": 512, "val_steps": 4, "steps": 24} if quick else {}
    config = crops_config(128 if quick else 1024, 0.1, quick=quick, **size)
    return replace(config, rung="my-rates")


def select_by_tags(runs: Iterable[Run], *words: str) -> list[Run]:
    """Return the runs that have all of these tags.

    Raises:
        ValueError: no run has them; the message lists all tags.
    """
    tags_by_run = [(run, tags(run)) for run in runs]
    selected = [run for run, run_tags in tags_by_run if {*words} <= {*run_tags}]
    if not selected:
        known = sorted({tag for _, run_tags in tags_by_run for tag in run_tags})
        raise ValueError(f"no run has the tags {', '.join(words)}. Choose of {', '.join(known)}")
    return selected


def settings_that_differ(runs: Iterable[Run]) -> pd.DataFrame:
    """Return the settings in which the runs differ, a row per run."""
    settings = pd.DataFrame([all_settings(run.config) for run in runs])
    settings = settings.drop(columns=["rung", "script", "data_root", "epochs"])
    return settings.loc[:, settings.astype(str).nunique() > 1]


def runs_table(runs: Iterable[Run]) -> pd.DataFrame:
    """Return one row for each run, the most accurate first.

    Without validation, the run with the lowest loss comes first, or else the fastest.

    Columns: run; the settings in which the runs differ; val_top1, last_loss and images_per_s, as
    far as measured; machine.
    """
    runs = list(runs)
    table = pd.DataFrame({"run": [run.name for run in runs]}).join(settings_that_differ(runs))
    for name in RESULTS:
        table[name] = [getattr(run.record, name) for run in runs]
    table["machine"] = [run.record.machine for run in runs]
    table = table.dropna(axis=1, how="all")
    for name in table.columns.intersection(RESULTS, sort=False)[:1]:
        return table.sort_values(name, ascending=name == "last_loss", ignore_index=True)
    return table


def explained_shares(table: pd.DataFrame) -> pd.Series:
    """Return the share of val_top1's variance that is between the values of each setting.

    This is eta squared, the correlation ratio. It shows what goes along with accuracy, not what
    causes it, and favours settings with many values.

    Args:
        table: from `runs_table`.
    """
    table = table.dropna(subset=["val_top1"])
    accuracy = table["val_top1"]
    total = ((accuracy - accuracy.mean()) ** 2).sum()
    shares = {}
    for name in table.columns.difference(OTHER_COLUMNS, sort=False):
        means = table.groupby(name)["val_top1"].transform("mean")
        shares[name] = ((means - accuracy.mean()) ** 2).sum() / total
    return pd.Series(shares, name="share").sort_values(ascending=False)
