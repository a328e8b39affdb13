"""Many runs as one table, which has only those settings in which they differ."""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd

from course.runs.run import Run
from course.runs.trackers import tags

NAMES = ("rung", "data_root")  # of a config: they change nothing that is computed
ABOUT = ("run", "epochs", "machine")
FOUND = ("val_top1", "last_loss", "images_per_s")  # of a record


def tagged(runs: Iterable[Run], *words: str) -> list[Run]:
    """The runs that have all of these tags.

    Raises:
        ValueError: none has; the message lists the tags that there are.
    """
    known = [(run, tags(run)) for run in runs]
    found = [run for run, own in known if set(words) <= {*own}]
    if not found:
        there = sorted({word for _, own in known for word in own})
        raise ValueError(f"no run has the tags {', '.join(words)}: there are {', '.join(there)}")
    return found


def differing(runs: Iterable[Run]) -> list[str]:
    """The fields of the config in which these runs differ, in the config's order."""
    settings = [vars(run.config) for run in runs]
    first = settings[0]
    return [
        name
        for name in first
        if name not in NAMES and any(each[name] != first[name] for each in settings)
    ]


def together(runs: Iterable[Run]) -> pd.DataFrame:
    """A row a run, the most accurate first, what diverged last: run, settings, results.

    Settings are those in which the runs differ; results are val_top1, last_loss and images_per_s,
    as far as any was measured; `epochs`, a list of the accuracies after each epoch; the machine.
    """
    chosen = list(runs)
    fields = differing(chosen)
    rows = [
        {
            "run": run.name,
            **{name: getattr(run.config, name) for name in fields if name != "epochs"},
            **{name: getattr(run.record, name) for name in FOUND},
            "epochs": [epoch["val_top1"] for epoch in run.record.epochs if "val_top1" in epoch],
            "machine": run.record.machine,
        }
        for run in chosen
    ]
    table = pd.DataFrame(rows)
    table = table.drop(columns=[name for name in FOUND if table[name].isna().all()])
    best = [name for name in FOUND if name in table][0]
    return table.sort_values(best, ascending=best == "last_loss", ignore_index=True)


def explained(table: pd.DataFrame, result: str = "val_top1") -> pd.Series:
    """How much of the spread of a result lies between the values of a setting, for each setting.

    Of all squared distances from the mean, the share that remains if each run is given the mean of
    the runs with the same value (eta squared, the correlation ratio). It says what goes along
    with a result and not what causes it, and favours settings with many values.

    Args:
        table: what `together` returns.
    """
    known = table.dropna(subset=[result])
    total = ((known[result] - known[result].mean()) ** 2).sum()
    fields = [name for name in known if name not in (*ABOUT, *FOUND)]
    shares = {}
    for name in fields:
        means = known.groupby(name)[result].transform("mean")
        shares[name] = ((means - known[result].mean()) ** 2).sum() / total
    return pd.Series(shares, name="share").sort_values(ascending=False)
