"""One exercise: its lines in the script, and three hints."""

from __future__ import annotations

import html
import re
import tomllib
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from typing import Any

from course.checks import discovery, exercises
from course.checks.exercises import SOLUTIONS
from course.runs.run import Run
from course.text import as_html, wrap_text

END = re.compile(r"^\s*# (--- before|<<<|TODO \w+[:,])|^$")  # of a seam
MOST_LINES = 4  # to show of a seam
# Break long lines, but not inside words.
CODE = '<pre style="white-space: pre-wrap; word-break: normal; font-family: monospace">'


@dataclass(frozen=True, repr=False)
class Todo:
    """An exercise. In a notebook its hints are collapsed; `hint(1)` to `hint(3)` print them.

    position: "3 of 16 in train.py". places: the number of the first line, and the lines, of each
    seam. nudge: what to consider. calls: the calls to use, with what each does. lines: the
    solution.
    """

    name: str
    position: str
    script: str
    places: tuple[tuple[int, tuple[str, ...]], ...]
    nudge: str
    calls: tuple[str, ...]
    lines: str

    def hint(self, layer: int) -> None:
        """Print a hint: 1 is a nudge, 2 names the calls, 3 is the solution.

        Raises:
            ValueError: another number.
        """
        texts = {1: wrap_text(self.nudge), 2: wrap_text("\n".join(self.calls)), 3: self.lines}
        if layer not in texts:
            raise ValueError(f"there is no hint {layer!r}: choose 1, 2 or 3")
        print(texts[layer])

    def _shown(self) -> str:
        if not self.places:
            return (
                f"{self.script}: TODO {self.name} is filled, and its comments are gone. "
                f"Check it: course check {self.name}"
            )
        lines = [f"Exercise {self.position}: {self.name}"]
        for first, place in self.places:
            shown = dedent("\n".join(place)).splitlines()  # so that they fit on a page
            lines += ["", f"{self.script}, line {first}", *(f"    {line}" for line in shown)]
        return "\n".join(lines)

    def __repr__(self) -> str:
        todo = f'show_todo("{self.name}")'
        more = f"Hints: {todo}.hint(1) is a nudge, hint(2) the calls, hint(3) the lines"
        return f"{self._shown()}\n{more}"

    def _repr_html_(self) -> str:
        calls = "".join(f"<li>{as_html(call)}</li>" for call in self.calls)
        layers = {
            "a nudge": f"<p>{as_html(self.nudge)}</p>",
            "the calls": f"<ul>{calls}</ul>",
            "the lines": f"{CODE}{html.escape(self.lines)}</pre>",
        }
        folded = "".join(
            f"<details><summary>Hint {number}: {name}</summary>{text}</details>"
            for number, (name, text) in enumerate(layers.items(), 1)
        )
        return f"{CODE}{html.escape(self._shown())}</pre>{folded}"


def show_todo(name: str, script: str = "") -> Todo:
    """Show an exercise's lines in a script, with line numbers and hints, or that it is filled.

    Args:
        script: by default the one in exercises/ that has it.

    Raises:
        ValueError: the script has no such exercise.
    """
    original = exercises.solution_of(name)
    script = script or f"{exercises.EXERCISES.name}/{original}"
    solution = SOLUTIONS / exercises.original_of(script)
    if solution.name != original:
        raise ValueError(f"{script} has no exercise {name!r}: it is in {original}")
    lines = exercises.read(script).splitlines()
    heads = [at for at, line in enumerate(lines) if re.match(rf"\s*# (>>>|TODO) {name}\b", line)]
    places = tuple((at + 1, _place(lines, at)) for at in heads)
    if (hints := all_hints().get(name)) is None:
        raise ValueError(f"{name!r} has no hints: add a table [{name}] to its lab's hints.toml")
    return Todo(
        name,
        exercises.place(name),
        script,
        places,
        hints["nudge"],
        tuple(hints["calls"]),
        _lines(name, solution),
    )


@cache
def all_hints() -> dict[str, dict[str, Any]]:
    """Return the entries of all labs' hints.toml, by exercise."""
    hints: dict[str, dict[str, Any]] = {}
    for folder in discovery.folders():
        if (path := folder / "hints.toml").exists():
            hints |= tomllib.loads(path.read_text(encoding="utf-8"))
    return hints


def needed_todos(run: Run) -> set[str]:
    """Return the names of the exercises that a run's config needs."""
    names = {"cfg": run.config, "requested": run.requested_config, "gpus": run.gpus}
    # The expressions come from the course itself, from labs' hints.toml.
    return {name for name, hint in all_hints().items() if eval(hint.get("needed", "0"), names)}


def _place(lines: list[str], at: int) -> tuple[str, ...]:
    """Return the lines of the seam at a TODO's comment, shortened if there are many."""
    depth = len(lines[at]) - len(lines[at].lstrip())
    after = lines[at + 1 :]
    after = [*takewhile(lambda line: not END.match(line) and not line[:depth].strip(), after)]
    cut = [" " * depth + "…"] if len(after) > MOST_LINES else []
    return (lines[at], *after[:MOST_LINES], *cut)


def _lines(name: str, solution: Path) -> str:
    seams = exercises.seams(solution.read_text(), solution.name, name)
    parts = [f"# {seam.title}\n{dedent(chr(10).join(seam.solution))}" for seam in seams]
    return "\n\n".join(parts).replace("  # fmt: skip", "")  # a note for the solution's formatter
