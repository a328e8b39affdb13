"""Runs, or tables of runs, as one dict per run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from course.runs.run import Run


def rows(runs: Iterable[Run] | pd.DataFrame) -> list[dict[str, Any]]:
    """Return a dict for each run, with the fields of its record and its `config` as a dict.

    Args:
        runs: runs, or a table of records with a column `config`, such as `recorded` or `find_runs`
            returns.
    """
    if isinstance(runs, pd.DataFrame):
        return runs.to_dict("records")
    found = []
    for run in runs:
        record = vars(run.record) if run.record else {}
        found.append({"status": run.status, **record, "config": vars(run.config)})
    return found


def finished(runs: Iterable[Run] | pd.DataFrame) -> list[dict[str, Any]]:
    """Return the `rows` of runs that are over.

    Raises:
        ValueError: a run is still queued or running.
    """
    found = rows(runs)
    for row in found:
        if row["status"] in ("queued", "running"):
            raise ValueError(
                f"a run of the sweep is still {row['status']}: wait(runs, check=False) first "
                f"(check=False, because a run may end out of memory here)"
            )
    return found
