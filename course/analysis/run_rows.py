"""Runs, or tables of records, as one dict per run."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pandas as pd

from course.runs.run import Run


def rows(runs: Iterable[Run] | pd.DataFrame) -> list[dict[str, Any]]:
    """Return the record's fields of each run, with its `config` as a dict.

    Args:
        runs: runs, or a table of records from `recorded` or `find_runs`.
    """
    if isinstance(runs, pd.DataFrame):
        return runs.to_dict("records")
    records = ((run, vars(run.record) if run.record else {}) for run in runs)
    return [{"status": run.status, **record, "config": vars(run.config)} for run, record in records]


def finished(runs: Iterable[Run] | pd.DataFrame) -> list[dict[str, Any]]:
    """Return the `rows` of runs that have finished.

    Raises:
        ValueError: a run is queued or running.
    """
    records = rows(runs)
    if waiting := [row["status"] for row in records if row["status"] in ("queued", "running")]:
        raise ValueError(
            f"a run is still {waiting[0]}: wait(runs, check=False) first (check=False, because a "
            "run may end out of memory here)"
        )
    return records
