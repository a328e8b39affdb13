"""Variants of a script: copies with some lines more, to launch next to it."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from course.checks.exercises import SOLUTION, render
from course.runs.run import ADDED, PROJECT, runs_root
from course.text import read_utf8


def script_variant(name: str, after: Mapping[str, str], script: str = SOLUTION) -> Path:
    """Copy a script with lines inserted, print the difference, and return the copy's path.

    Args:
        name: the copy is `variants/NAME/train.py` in the folder of the runs.
        after: maps a line of the script (without its indentation) to the lines to insert after
            it, at the same indentation.
        script: the original; by default the solution with all TODOs filled.

    Raises:
        ValueError: the script does not have a line exactly once.
    """
    text = read_utf8(PROJECT / script)
    solved = render(text, name=script)
    lines = solved.splitlines()
    for anchor, new in after.items():
        places = [at for at, line in enumerate(lines) if line.strip() == anchor.strip()]
        if len(places) != 1:
            raise ValueError(
                f"{script} has the line {anchor!r} {len(places)} times: choose one that occurs once"
            )
        line = lines[places[0]]
        indent = line[: len(line) - len(line.lstrip())]
        lines[places[0] + 1 : places[0] + 1] = [
            indent + line for line in dedent(new).strip().splitlines()
        ]
    target = runs_root() / "variants" / name / Path(script).name
    target.parent.mkdir(parents=True, exist_ok=True)
    content = "\n".join(lines) + "\n"
    target.write_text(content)
    added = {anchor.strip(): dedent(new).strip() for anchor, new in after.items()}
    added |= {} if script == SOLUTION else {"script": script}
    origin = {"added": added, "sha256": hashlib.sha256(content.encode()).hexdigest()}
    target.with_suffix(ADDED).write_text(json.dumps(origin, indent=1))
    print("\n".join(_shown(solved.splitlines(), lines)))
    return target


def _shown(before: list[str], after: list[str]) -> list[str]:
    """Return the added lines, each block under the line that it follows."""
    shown = []
    for line in difflib.unified_diff(before, after, n=1, lineterm=""):
        if line.startswith("@@"):
            shown.append("…")
        elif not line.startswith(("---", "+++")):
            shown.append(line)
    return shown
