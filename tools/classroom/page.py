"""Write a class as one page that opens without a server, for the instructor only."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from course.runs import runs_root, write_atomically
from tools.classroom import drop_box, report

TEMPLATE = Path(__file__).with_name("page.html.j2")
PAGE, PREDICTION_PAGE = "class.html", "prediction.html"
RELOAD_S = 10
ACTIVE_MIN = 15  # a learner who sent something since then is at work


def write(folder: Path, *, live: bool = False) -> tuple[list, list[str], dict[str, str], Path]:
    """Write the page; return the learners, what is wrong, who waits for jobs, and its path."""
    learners, problems = drop_box.read(folder)
    jobs = report.waiting_jobs([learner.name for learner in learners])
    path = save(PAGE, render(folder, learners, problems, jobs, live=live))
    return learners, problems, jobs, path


def save(name: str, text: str) -> Path:
    """Write a page into your runs folder, readable for you only; return its path."""
    runs_root().mkdir(parents=True, exist_ok=True)
    path = runs_root() / name
    write_atomically(path, text, mode=0o600)
    return path


def keep_writing(folder: Path) -> None:
    """Write the page every RELOAD_S, until interrupted; a shared disk may fail for a while."""
    try:
        while True:
            time.sleep(RELOAD_S)
            try:
                write(folder, live=True)
            except (OSError, ValueError) as error:
                print(error, file=sys.stderr)
    except KeyboardInterrupt:
        write(folder)


def render(
    folder: Path,
    learners: Sequence[drop_box.Learner],
    problems: Sequence[str],
    jobs: dict[str, str],
    *,
    live: bool = False,
) -> str:
    """Render the class."""
    begun, causes = report.begun(learners, report.MOST_COLUMNS), report.causes(learners)
    ordered = report.in_order(learners)
    names = [name for names in begun.values() for name in names]
    rows = [
        {
            "learner": learner,
            "cells": [report.cell(learner, name) for name in names],
            "stuck": report.stuck_on(learner),
            "minutes": report.minutes_since(learner.sent_at),
            "jobs": jobs.get(learner.name, ""),
        }
        for learner in ordered
    ]
    return _render(
        live=live,
        name=folder.name,
        rows=rows,
        begun=begun,
        hidden=sum(map(len, report.begun(learners).values())) - len(names),
        firsts={names[0] for names in begun.values()},
        hands=[learner for learner in ordered if learner.hand],
        stuck=sum(row["stuck"] is not None for row in rows),
        active=sum(row["minutes"] < ACTIVE_MIN for row in rows),
        causes=[cause for cause in causes if cause.cause],
        charts=report.histograms(learners),
        problems=problems,
    )


def render_prediction(chart: report.Histogram) -> str:
    """Render one prediction without names, to discuss it with the class."""
    return _render(live=False, name=chart.key, charts=[chart], only_chart=True)


def _render(*, live: bool, **values: Any) -> str:
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {"age": report.age, "since": report.minutes_since}
    return environment.from_string(TEMPLATE.read_text()).render(
        written_at=f"{datetime.now():%H:%M:%S}",
        reload_s=RELOAD_S if live else 0,
        active_min=ACTIVE_MIN,
        **values,
    )
