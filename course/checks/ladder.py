"""The learner's own ladder so far: predicted and measured, beside a recorded GPU's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from course import charts
from course.checks import discovery
from course.checks.predictions import prediction
from course.config import BEYOND, COMPILED, LADDER
from course.runs import recordings
from course.runs.ratio import ratio
from course.runs.run import Run, all_runs
from course.text import digits

BESIDE = "nvidia-h100"  # the recorded machine


@dataclass(frozen=True, repr=False)
class Ladder:
    """The rungs as far as they were climbed. Shows itself as a picture; as text, line by line.

    table: one row a rung, with lab, predicted, ratio, low, high (to the rung before, the last two
    the ends of its interval), images_per_s; and of the recorded machine
    recorded_images_per_s and recorded_on, "CPU" where its GPU did not compute. NaN: not yet.
    """

    table: pd.DataFrame
    machine: str  # "": nothing was measured yet
    recorded: str

    @property
    def picture(self) -> charts.Picture:
        return charts.plot_ladder_progress(self.table, self.machine, self.recorded)

    def __repr__(self) -> str:
        return "\n".join(_lines(self.table))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.picture._repr_mimebundle_() | {"text/plain": repr(self)}


def ladder(beside: str = BESIDE) -> Ladder:
    """Your rungs of the ladder so far, each as it was last measured in turns with the one before.

    Args:
        beside: a recorded machine whose rungs are shown, too.
    """
    known = recordings.large(beside, [*LADDER, *COMPILED])
    elsewhere = known.set_index("rung")
    rows, machine = [], ""
    climbed = {name: _measured(name, before) for before, name in _pairs()}
    first, second, *_ = LADDER
    if climbed[second][1]:  # the one that the second rung was compared with
        climbed[first] = climbed[second][1], None
    for name, (run, partner) in climbed.items():
        row = {"rung": name, "lab": _lab_of(name), **_predicted(name)}
        if run is not None:
            machine = run.record.machine
            row["images_per_s"] = run.record.images_per_s
            if partner is not None:
                found = ratio(run, partner)
                row |= {"ratio": found.value, "low": found.low, "high": found.high}
        if name in elsewhere.index:
            other = elsewhere.loc[name]
            row |= {
                "recorded_images_per_s": other["images_per_s"],
                "recorded_on": "CPU" if other["device"] == "cpu" else "",
            }
        rows.append(row)
    return Ladder(pd.DataFrame(rows, columns=COLUMNS), machine, _named(known))


def _pairs() -> Iterator[tuple[str, str]]:
    """Each rung after the one that it is compared with, the first after ""."""
    yield from pairwise(["", *LADDER])
    yield from pairwise(["channels_last", *COMPILED])


COLUMNS = [
    "rung",
    "lab",
    "predicted",
    "ratio",
    "low",
    "high",
    "images_per_s",
    "recorded_images_per_s",
    "recorded_on",
]


def _measured(name: str, before: str) -> tuple[Run | None, Run | None]:
    """The newest run of a rung that took turns with one of the rung before, and that one.

    The first rung has none before it.
    """
    found = [run for run in all_runs() if run.status == "ok" and run.record.images_per_s]
    found = sorted(
        (run for run in found if run.config.rung == name), key=lambda run: run.record.started_at
    )
    for run in reversed(found):
        if not before:
            return run, None
        for each in run.together:
            if each != run and each.status == "ok" and _computes(before, each, run):
                return run, each
    return None, None


def _computes(before: str, other: Run, run: Run) -> bool:
    """Whether another run of the job is the rung before, or computed what that rung would have.

    `course ladder` skips a rung that would repeat a computation of the rungs before it.
    """
    if other.config.rung == before:
        return True
    rungs = LADDER | BEYOND
    changed = vars(rungs[run.config.rung]).items() - vars(rungs[before]).items()
    settings = {name: getattr(run.config, name) for name in ("device", *dict(changed))}
    is_alike = vars(other.config) | settings == vars(run.config)
    return is_alike and other.record.device == run.record.device


def _predicted(name: str) -> dict[str, Any]:
    stored = prediction(name)
    is_number = stored is not None and not isinstance(stored.value, str)
    return {"predicted": stored.value} if is_number else {}


def _lab_of(name: str) -> str:
    """The first lab that teaches a rung."""
    for lab in discovery.labs():
        taught = {rung for rung, _ in lab.rungs} | {check.rung for check in lab.checks.values()}
        if name in taught:
            return lab.number
    return ""


def _named(table: pd.DataFrame) -> str:
    gpu = table[table["device"] != "cpu"].iloc[0]
    return f"{gpu['machine']}, {gpu['setup']}"


def _lines(table: pd.DataFrame) -> Iterator[str]:
    for row in table.itertuples():
        said = f", you said {digits(row.predicted)}×" if pd.notna(row.predicted) else ""
        if pd.isna(row.images_per_s):
            yield f"{row.rung:15}not yet: lab {row.lab}{said}"
            continue
        against = f", {digits(row.ratio)}× the rung before" if pd.notna(row.ratio) else ""
        yield f"{row.rung:15}{digits(row.images_per_s)} images/s{against}{said}"
