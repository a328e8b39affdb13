"""The learner's ladder so far: predicted and measured speedups, next to a recorded GPU's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pandas as pd

from course import charts
from course.checks import discovery
from course.checks.predictions import prediction, site_of
from course.checks.store import NOISY
from course.config import COMPILED, LADDER, RUNGS
from course.runs import recordings
from course.runs.ratio import ratio
from course.runs.run import Run, all_runs
from course.text import digits

BESIDE = "nvidia-h100"  # the recorded machine


@dataclass(frozen=True, repr=False)
class Ladder:
    """The rungs that were measured, displayed as a figure, or as text.

    table: one row per rung with lab, predicted, ratio (to the previous rung), low and high (ends of
    the ratio's interval), noise (why the ratio is too noisy to judge), images_per_s, setup (data,
    sizes); and for the recorded machine recorded_images_per_s and recorded_on ("CPU" if its GPU was
    not used). NaN: not measured yet.
    """

    table: pd.DataFrame
    machine: str  # "" if nothing was measured yet
    recorded: str

    @property
    def picture(self) -> charts.Picture:
        return charts.plot_ladder_progress(self.table, self.machine, self.recorded)

    def __repr__(self) -> str:
        return "\n".join(_lines(self.table))

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        return self.picture._repr_mimebundle_() | {"text/plain": repr(self)}


def ladder(beside: str = BESIDE) -> Ladder:
    """Show your ladder so far: the newest run of each rung that took turns with the previous rung.

    Args:
        beside: a recorded machine to show next to it.
    """
    recorded = recordings.full_batch_ladder(beside, [*LADDER, *COMPILED])
    recorded_rungs = recorded.set_index("rung")
    rows, machine = [], ""
    climbed = {name: _measured(name, before) for before, name in _pairs()}
    first, second, *_ = LADDER
    if climbed[second][1]:  # the run that the second rung was compared with
        climbed[first] = climbed[second][1], None
    for name, (run, partner) in climbed.items():
        row = {"rung": name, "lab": _lab_of(name), **_predicted(name, run), "noise": ""}
        if run is not None:
            machine = run.record.machine
            row |= {"images_per_s": _images_per_s(run), "setup": run.config.setup}
            if partner is not None:
                speedup = ratio(run, partner)
                row |= {"ratio": speedup.value, "low": speedup.low, "high": speedup.high}
                row["noise"] = speedup.noise()
        if name in recorded_rungs.index:
            other = recorded_rungs.loc[name]
            row |= {
                "recorded_images_per_s": other["images_per_s"],
                "recorded_on": "CPU" if other["device"] == "cpu" else "",
            }
        rows.append(row)
    return Ladder(pd.DataFrame(rows, columns=COLUMNS), machine, _machine_name(recorded))


def _images_per_s(run: Run) -> float:
    """Return the speed of the median step; with workers of the mean, as some steps wait long."""
    measured = run.steps[run.config.warmup_steps :]
    if not run.config.workers or measured.empty:
        return run.record.images_per_s
    return run.config.batch_size / measured["step_s"].mean()


def _pairs() -> Iterator[tuple[str, str]]:
    """Yield (previous rung, rung) for each rung; the first has "" before it."""
    yield from pairwise(["", *LADDER])
    yield from pairwise(["channels_last", *COMPILED])


COLUMNS = [
    "rung",
    "lab",
    "predicted",
    "ratio",
    "low",
    "high",
    "noise",
    "images_per_s",
    "setup",
    "recorded_images_per_s",
    "recorded_on",
]


def _measured(name: str, before: str) -> tuple[Run | None, Run | None]:
    """Return the newest run of a rung that took turns with one of the previous rung, and that run.

    The first rung has no previous one.
    """
    runs = [
        run
        for run in all_runs()
        if run.config.rung == name and run.status == "ok" and run.record.images_per_s
    ]
    for run in sorted(runs, key=lambda run: run.record.started_at, reverse=True):
        if not before:
            return run, None
        for other in run.together:
            ended_alike = other.status == "ok" and other.gpus == run.gpus
            if other != run and ended_alike and _computes(before, other, run):
                return run, other
    return None, None


def _computes(before: str, other: Run, run: Run) -> bool:
    """Return whether another run of the job is the previous rung, or computed the same.

    `course ladder` skips a rung that would repeat the computation of an earlier one.
    """
    if other.config.rung == before:
        return True
    changed = vars(RUNGS[run.config.rung]).items() - vars(RUNGS[before]).items()
    settings = {name: getattr(run.config, name) for name in ("device", *dict(changed))}
    is_alike = vars(other.config) | settings == vars(run.config)
    return is_alike and other.record.device == run.record.device


def _predicted(name: str, run: Run | None) -> dict[str, Any]:
    stored = prediction(name, site_of(run)) if run else prediction(name)
    is_number = stored is not None and not isinstance(stored.value, str)
    return {"predicted": stored.value} if is_number else {}


def _lab_of(name: str) -> str:
    """Return the label of the first lab that teaches a rung."""
    for lab in discovery.labs():
        taught = {rung for rung, _ in lab.rungs} | {check.rung for check in lab.exercises.values()}
        if name in taught:
            return lab.label
    return ""


def _machine_name(table: pd.DataFrame) -> str:
    gpu = table[table["device"] != "cpu"].iloc[0]
    return f"{gpu['machine']}, {gpu['setup']}"


def _lines(table: pd.DataFrame) -> Iterator[str]:
    setup = ""
    for row in table.itertuples():
        guess = f", you predicted {digits(row.predicted)}×" if pd.notna(row.predicted) else ""
        if pd.isna(row.images_per_s):
            yield f"{row.rung:15}not yet: lab {row.lab}{guess}"
            continue
        against = f", {digits(row.ratio)}× the previous rung" if pd.notna(row.ratio) else ""
        against += f" ({NOISY})" * bool(row.noise)
        changed = f" ({row.setup})" if setup not in ("", row.setup) else ""
        setup = row.setup
        yield f"{row.rung:15}{digits(row.images_per_s)} images/s{against}{changed}{guess}"
