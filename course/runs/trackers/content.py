"""What a run hands on, the same to every tool: it is read from its folder, and nowhere else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from course.runs.record import Record
from course.runs.run import Run

# Of a record: what has its own place, and what is too long for a table's cell.
ELSEWHERE = ("rung", "config", "epochs", "versions", "hardware", "evidence", "logs", "schema")
STEP, EPOCH = "step/", "epoch/"  # in front of a series' name: how often it has a value
SAME = EPOCH + "val_images"  # a line that never moves is not worth a picture


@dataclass(frozen=True)
class Row:
    """What is known after one step of training: its number (from 0), when, and series' values."""

    step: int
    at_s: float  # since 1970: the run's start, plus the steps so far; validating takes no time
    values: dict[str, float]


@dataclass(frozen=True)
class Content:
    """A run as tools for tracking see one."""

    name: str
    began_s: float
    config: dict[str, Any]  # what was asked for: hyperparameters
    summary: dict[str, Any]  # what came out: numbers with units in their names, and a few words
    tags: list[str]
    rows: list[Row]

    @property
    def numbers(self) -> dict[str, float]:
        """The numbers of the summary."""
        return {key: value for key, value in self.summary.items() if _is_number(value)}


def content(run: Run) -> Content:
    """What a run that is over hands on.

    Raises:
        ValueError: it is not over, so that it has no record.
    """
    record = run.record
    if record is None:
        raise ValueError(f"{run.name} is {run.status}: wait for it, only its record is handed on")
    began_s = datetime.fromisoformat(record.started_at).timestamp() if record.started_at else 0.0
    config = {**record.config, "script": run.source, "gpus": record.gpus}
    config |= {f"version_{name}": version for name, version in record.versions.items()}
    rows = list(_rows(run, record, began_s))
    return Content(run.name, began_s, config, _summary(record), tags(run), rows)


def tags(run: Run) -> list[str]:
    """Words by which runs are found again: rung or search, purpose, status, site, data."""
    asked = run.launched
    kind = asked["trial"]["study"] if "trial" in asked else asked.get("rung", "")
    data = run.config.data
    found = (kind, run.purpose, run.status, asked.get("site", ""), data)
    return [*dict.fromkeys(each for each in found if each)]


def _summary(record: Record) -> dict[str, Any]:
    values = {each.name: getattr(record, each.name) for each in fields(record)}
    kept = {key: value for key, value in values.items() if key not in ELSEWHERE}
    return {
        key: value
        for key, value in kept.items()
        if _is_number(value) or (isinstance(value, str) and value)
    }


def _rows(run: Run, record: Record, began_s: float) -> Iterator[Row]:
    """Each step's values; what an epoch's validation found stands beside its last step."""
    steps = run.steps.to_dict("records")
    last = {row["epoch"]: row["step"] for row in steps}  # an epoch's last step
    found = {last[at]: each for at, each in enumerate(record.epochs) if at in last}
    at_s = began_s
    for row in steps:
        at_s += row["step_s"] if _is_number(row.get("step_s")) else 0.0
        own = {STEP + key: each for key, each in row.items() if key not in ("step", "epoch")}
        own |= {EPOCH + key: each for key, each in found.get(row["step"], {}).items()}
        told = {key: each for key, each in own.items() if _is_number(each) and key != SAME}
        yield Row(row["step"], at_s, told)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
