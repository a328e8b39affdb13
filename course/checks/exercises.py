"""Generate exercises from solutions: seams in a solution become the TODOs that learners fill.

A seam is a block of lines in solutions/*.py:

    # >>> amp: the task
    the_solution()
    # --- before
    # the_line_to_replace()
    # <<<

An exercise may have several seams, which share its name; the lab that has the exercise lists the
name in its lab.py. A view shows the solution of the filled exercises, and the lines after "before"
for the rest, so every view runs. Exercises are ordered as the labs that have them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from course.checks import discovery
from course.checks.script_edits import SOLVED, Place, edited_todos
from course.jobs.plan import find_script
from course.runs.run import PROJECT
from course.text import closest, read_utf8

SOLUTION = "solutions/train.py"
OPEN = re.compile(r"^(\s*)# >>> ([a-z]\w*): (.+)$")
MARKER = re.compile(r"^\s*#\s*(>>>|---\s*before|<<<)")
SOLUTIONS, EXERCISES = PROJECT / "solutions", PROJECT / "exercises"


class SeamError(ValueError):
    """A nested, unclosed or unreadable marker; the message names file and line."""


@dataclass(frozen=True)
class Seam:
    """One seam of an exercise. `line` is the line of its opening marker, counted from 1."""

    name: str
    title: str
    indent: str
    line: int
    solution: tuple[str, ...]
    before: tuple[str, ...]

    def shown(self, solved: bool) -> list[str]:
        """Return the lines that a view shows here."""
        mark = f"{self.indent}# TODO {self.name}{', solved' * solved}: {self.title}"
        return [mark, *(self.solution if solved else self.before)]


@lru_cache(maxsize=64)  # to find a TODO, every solution is parsed
def parse(text: str, name: str = "text") -> tuple[str | Seam, ...]:
    """Return the lines of a solution, with each seam as one item.

    Raises:
        SeamError: markers that are nested, unclosed, stray, or without name and task.
    """
    items: list[str | Seam] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if opened := OPEN.match(line):
            items.append(_seam(opened, number, lines, name))
        elif MARKER.match(line):
            raise SeamError(
                f"solutions/{name}, line {number}: expected '# >>> name: task', "
                f"not {line.strip()!r}"
            )
        else:
            items.append(line)
    return tuple(items)


def _seam(opened: re.Match, first: int, lines: Iterator[tuple[int, str]], name: str) -> Seam:
    indent, exercise, title = opened.groups()
    parts: list[list[str]] = [[]]
    for number, line in lines:
        marker = MARKER.match(line)
        if marker is None:
            parts[-1].append(line)
        elif marker[1] == "<<<":
            before = [] if len(parts) == 1 else [_uncomment(text, indent) for text in parts[1]]
            return Seam(exercise, title, indent, first, tuple(parts[0]), tuple(before))
        elif marker[1] == ">>>" or len(parts) == 2:
            where = f"solutions/{name}, line {number}: {line.strip()!r} inside the seam of"
            raise SeamError(f"{where} {exercise!r}, line {first}: end that one before, with # <<<")
        else:
            parts.append([])
    raise SeamError(
        f"solutions/{name}, line {first}: the seam of {exercise!r} has no end: add # <<< after it"
    )


def _uncomment(line: str, indent: str) -> str:
    return indent + line.removeprefix(indent).removeprefix("# ") if line.strip() else line


def names(text: str, name: str = "text") -> list[str]:
    """Return the names of a solution's exercises in the order of the labs.

    Exercises that no lab has come last.
    """
    known = {seam.name: None for seam in seams(text, name)}
    return sorted(known, key=_position)


def seams(text: str, name: str = "text", exercise: str = "") -> list[Seam]:
    """Return the seams of a solution, of one exercise or of all."""
    seams = [item for item in parse(text, name) if isinstance(item, Seam)]
    return [seam for seam in seams if exercise in ("", seam.name)]


def solution_of(exercise: str) -> str:
    """Return the name of the script that has an exercise.

    Raises:
        ValueError: no script has it; the message lists the exercises of each script.
    """
    of_scripts = {path.name: names(path.read_text(), path.name) for path in solutions()}
    for name, known in of_scripts.items():
        if not known:
            raise ValueError(
                f"solutions/{name} has no seams, as if an exercise had been copied over it: "
                f"restore it with git checkout solutions/{name}"
            )
        if exercise in known:
            return name
    close = closest(exercise, sum(of_scripts.values(), []))
    choices = "; ".join(f"{name} has {', '.join(known)}" for name, known in of_scripts.items())
    raise ValueError(f"there is no exercise {exercise!r}{close}: {choices}")


def exercise_of(exercise: str) -> str:
    """Return the path of the script in exercises/ that has an exercise, from the root."""
    return f"{EXERCISES.name}/{solution_of(exercise)}"


def place(exercise: str) -> str:
    """Return where in its script an exercise is, such as "3 of 16 in train.py"."""
    script = solution_of(exercise)
    known = names((SOLUTIONS / script).read_text(), script)
    return f"{known.index(exercise) + 1} of {len(known)} in {script}"


def upto(exercise: str) -> list[str]:
    """Return the names of an exercise and of all before it, over all scripts.

    Raises:
        ValueError: there is no such exercise.
    """
    solution_of(exercise)
    order = [*discovery.exercises()]
    return order[: order.index(exercise) + 1]


def _position(exercise: str) -> int:
    """Return an exercise's position in the order of the labs; the last if no lab has it."""
    order = [*discovery.exercises()]
    return order.index(exercise) if exercise in order else len(order)


def original_of(script: Path | str) -> str:
    """Return the name of the solution that a script derives from: its own, else train.py."""
    name = Path(script).name
    return name if (SOLUTIONS / name).is_file() else Path(SOLUTION).name


def render_like(text: str, script: str) -> str:
    """Return the view of a solution with the same TODOs filled as in a script.

    Args:
        text: the solution's.
        script: the text of the exercise.
    """
    return _view(parse(text), _edited(parse(text), script))


def render(text: str, filled: Container[str] | None = None, name: str = "text") -> str:
    """Return the view of a solution with some exercises filled; by default, with all."""
    items = parse(text, name)
    return _view(items, names(text, name) if filled is None else filled)


def _view(items: Sequence[str | Seam], filled: Container[str]) -> str:
    lines: list[str] = []
    for item in items:
        lines += item.shown(item.name in filled) if isinstance(item, Seam) else [item]
    return "\n".join(lines) + "\n"


def read(script: str | Path) -> str:
    """Return the text of a script, given its path from the project's root.

    Raises:
        ValueError: it is missing; the message has the command that restores it.
    """
    return read_utf8(find_script(PROJECT / script))


def solutions() -> list[Path]:
    """Return all solution files in the order of their first exercises."""

    def first(path: Path) -> int:
        return min(map(_position, names(path.read_text(), path.name)), default=0)

    return sorted(sorted(SOLUTIONS.glob("*.py")), key=first)


def digest(text: str) -> str:
    """Return a short name of a script's text, to store with a check of it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def all_states() -> list[dict[str, object]]:
    """Return name, script, state and title of every exercise, in the order of the labs."""
    rows = [{**row, "script": path.name} for path in solutions() for row in states(path.name)]
    return sorted(rows, key=lambda row: _position(row["todo"]))


def states(name: str = "train.py") -> list[dict[str, object]]:
    """Return name, title and state (open, edited, given, solved) of each exercise of a script.

    given: solved, with the comment that `--upto` writes and no learner needs to.
    """
    solution = (SOLUTIONS / name).read_text()
    return [
        {"todo": exercise, "state": state, "title": seams(solution, name, exercise)[0].title}
        for exercise, state in states_of(read(EXERCISES / name), name).items()
    ]


def states_of(text: str, name: str) -> dict[str, str]:
    """Return the state of each exercise in a script's text."""
    solution = (SOLUTIONS / name).read_text()
    items, given = parse(solution, name), SOLVED.findall(text)
    edited, differs = _edited(items, text), _edited(items, text, solved=True)

    def state(exercise: str) -> str:
        if exercise not in differs:
            return "given" if exercise in given else "solved"
        return "edited" if exercise in edited else "open"

    return {exercise: state(exercise) for exercise in names(solution, name)}


def open_todos(text: str, name: str = "train.py") -> set[str]:
    """Return the names of the exercises that are untouched in a script, such as a snapshot."""
    solution = (SOLUTIONS / name).read_text()
    return {*names(solution, name)} - _edited(parse(solution, name), text)


def _edited(items: Sequence[str | Seam], script: str, *, solved: bool = False) -> set[str]:
    """Return the names of the exercises whose code in a script differs from the view."""
    places, end = [], 0
    for item in items:
        start = end
        end += len(item.shown(solved)) if isinstance(item, Seam) else 1
        if isinstance(item, Seam):
            code = "\n".join(item.solution), "\n".join(item.shown(solved)[1:])
            places.append(Place(item.name, start + 1, end + 1, *code, _position(item.name)))
    every = {item.name for item in items if isinstance(item, Seam)}
    views = [_view(items, todos) for todos in (set(), every)]
    return edited_todos(views[solved], places, script, views[True], exactly=solved)
