"""The instructors' table of labs: from their entries, and from a rehearsal that was recorded."""

from __future__ import annotations

import json

from course.days import LABS
from course.runs.run import PROJECT
from tools.pages.markdown import markdown

REHEARSED = PROJECT / "benchmarks" / "rehearsal_2_cores.jsonl"
HEAD = (
    "lab",
    "plan, min",
    "jobs of each learner",
    "rehearsed, s",
    "prepare",
    "where people get stuck",
)


def labs() -> str:
    """A row for each lab in Markdown, and where and how the seconds were measured.

    A lab that was not rehearsed there has a dash.
    """
    first, *lines = [json.loads(line) for line in REHEARSED.read_text().splitlines()]
    seconds = {line["notebook"]: line["seconds"] for line in lines}
    rows = [
        [
            f"{lab.number} {lab.title}",
            str(lab.minutes),
            lab.jobs or "none",
            f"{seconds[lab.notebook]:.0f}" if lab.notebook in seconds else "–",
            lab.prepare,
            lab.stuck,
        ]
        for lab in LABS
    ]
    source = f"{first['machine']}, {first['date']}, recorded by `{first['command']}`."
    return markdown(HEAD, rows, source=source)
