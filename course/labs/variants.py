"""A script with a few lines put in: what a lab tries without touching what the learner wrote."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from course.labs.exercises import count, render
from course.runs.run import PROJECT, runs_root

SOLUTION = "solutions/train.py"


def variant(name: str, after: Mapping[str, str], script: str = SOLUTION) -> Path:
    """A copy of a script with lines put in, and a print of what differs. Launch it as any script.

    Args:
        name: of the folder that the copy lies in, beside the runs: `variants/NAME/train.py`.
        after: for a line of the script (without its indentation) the lines that follow it there,
            at the same indentation.
        script: the original; the solution by default, whose every TODO is filled.

    Raises:
        ValueError: a line that the script does not have, or has more than once.
    """
    text = (PROJECT / script).read_text()
    solved = render(text, count(text), script)
    lines = solved.splitlines()
    for anchor, new in after.items():
        places = [at for at, line in enumerate(lines) if line.strip() == anchor.strip()]
        if len(places) != 1:
            raise ValueError(
                f"{script} has the line {anchor!r} {len(places)} times: choose one that it has once"
            )
        line = lines[places[0]]
        indent = line[: len(line) - len(line.lstrip())]
        lines[places[0] + 1 : places[0] + 1] = [
            indent + each for each in dedent(new).strip().splitlines()
        ]
    target = runs_root() / "variants" / name / Path(script).name
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text("\n".join(lines) + "\n")
    print("\n".join(_shown(solved.splitlines(), lines)))
    return target


def _shown(before: list[str], after: list[str]) -> list[str]:
    """The added lines, each stretch under the line that it follows."""
    found = []
    for line in difflib.unified_diff(before, after, n=1, lineterm=""):
        if line.startswith("@@"):
            found.append("…")
        elif not line.startswith(("---", "+++")):
            found.append(line)
    return found
