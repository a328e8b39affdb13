"""Generate exercises from solutions: seams in a solution become the TODOs that learners fill.

A seam is a block of lines in solutions/*.py:

    # >>> TODO amp, day 1: the task
    the_solution()
    # --- before
    # the_line_to_replace()
    # <<<

A TODO may have several seams. A view with k solved TODOs shows the solution of TODO device to k, and
the lines after "before" for the rest, so every view runs.

TODOs are numbered over all scripts; each script continues where the previous one ends.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import subprocess
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from textwrap import dedent

from course.checks import discovery, store
from course.checks.script_edits import Place, edited_todos
from course.jobs.plan import find_script
from course.runs.files import write_atomically
from course.runs.run import ADDED, PROJECT, runs_root
from course.text import read_utf8

SOLUTION = "solutions/train.py"
OPEN = re.compile(r"^(\s*)# >>> TODO (\d+)(?:, day (\d+))?: (.+)$")
MARKER = re.compile(r"^\s*#\s*(>>>|---\s*before|<<<)")
SOLUTIONS, EXERCISES = PROJECT / "solutions", PROJECT / "exercises"


class SeamError(ValueError):
    """A nested, unclosed or misnumbered marker; the message names file and line."""


@dataclass(frozen=True)
class Seam:
    """One seam of a TODO. `line` is the line of its opening marker, counted from 1."""

    number: int
    title: str
    indent: str
    line: int
    solution: tuple[str, ...]
    before: tuple[str, ...]
    day: str = ""  # when learners fill it

    def shown(self, solved: bool) -> list[str]:
        """Return the lines that a view shows here."""
        when = f", day {self.day}" if self.day else ""
        mark = f"{self.indent}# TODO {self.number}{when}{', solved' * solved}: {self.title}"
        return [mark, *(self.solution if solved else self.before)]


@lru_cache(maxsize=64)  # to find a TODO, every solution is parsed
def parse(text: str, name: str = "text") -> tuple[str | Seam, ...]:
    """Return the lines of a solution, with each seam as one item.

    Raises:
        SeamError: markers that are nested, unclosed, stray, or misnumbered.
    """
    items: list[str | Seam] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if opened := OPEN.match(line):
            items.append(_seam(opened, number, lines, name))
        elif MARKER.match(line):
            raise SeamError(
                f"{name}, line {number}: expected 'TODO N: title', not {line.strip()!r}"
            )
        else:
            items.append(line)
    _check_numbers([item for item in items if isinstance(item, Seam)], name)
    return tuple(items)


def _seam(opened: re.Match, first: int, lines: Iterator[tuple[int, str]], name: str) -> Seam:
    indent, todo, day, title = opened.groups()
    parts: list[list[str]] = [[]]
    for number, line in lines:
        marker = MARKER.match(line)
        if marker is None:
            parts[-1].append(line)
        elif marker[1] == "<<<":
            before = [] if len(parts) == 1 else [_uncomment(text, indent) for text in parts[1]]
            return Seam(int(todo), title, indent, first, tuple(parts[0]), tuple(before), day or "")
        elif marker[1] == ">>>" or len(parts) == 2:
            stray = line.strip()
            raise SeamError(f"{name}, line {number}: {stray!r} inside the seam of line {first}")
        else:
            parts.append([])
    raise SeamError(f"{name}, line {first}: the seam of TODO {todo} is not closed by # <<<")


def _uncomment(line: str, indent: str) -> str:
    return indent + line.removeprefix(indent).removeprefix("# ") if line.strip() else line


def _check_numbers(seams: list[Seam], name: str) -> None:
    numbers = sorted({seam.number for seam in seams})
    for expected, number in enumerate(numbers, max(1, numbers[0]) if numbers else 1):
        if number != expected:
            line = next(seam.line for seam in seams if seam.number == number)
            raise SeamError(
                f"{name}, line {line}: TODO {number}, but there is no TODO {expected}; "
                f"number TODOs without gaps"
            )


def numbers(text: str, name: str = "text") -> list[int]:
    """Return the numbers of a solution's TODOs in order."""
    return sorted({seam.number for seam in seams(text, name)})


def seams(text: str, name: str = "text", todo: int = 0) -> list[Seam]:
    """Return the seams of a solution, of one TODO or of all."""
    seams = [item for item in parse(text, name) if isinstance(item, Seam)]
    return [seam for seam in seams if not todo or seam.number == todo]


def count(text: str) -> int:
    """Return the number of a solution's last TODO."""
    return max(numbers(text), default=0)


def solution_of(todo: int) -> str:
    """Return the name of the script that has a TODO.

    Raises:
        ValueError: no script has it; the message lists the TODOs of each script.
    """
    todos = {path.name: numbers(path.read_text(), path.name) for path in solutions()}
    for name, script_todos in todos.items():
        if not script_todos:
            raise ValueError(
                f"solutions/{name} has no TODOs, as if an exercise had been copied over it: "
                f"restore it with git checkout solutions/{name}"
            )
        if todo in script_todos:
            return name
    choices = "; ".join(f"{name} has {all_[0]} to {all_[-1]}" for name, all_ in todos.items())
    raise ValueError(f"there is no TODO {todo}: {choices}")


def exercise_of(todo: int) -> str:
    """Return the path of the exercise that has a TODO, from the project's root."""
    return f"{EXERCISES.name}/{solution_of(todo)}"


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


def render(text: str, solved: int, name: str = "text") -> str:
    """Return the view of a solution with the TODOs up to `solved` filled.

    Raises:
        ValueError: there is no such TODO.
    """
    items, total = parse(text, name), count(text)
    if not 0 <= solved <= total:
        raise ValueError(f"{name} has TODOs up to {total}: choose 0 to {total}, not {solved}")
    return _view(items, range(solved + 1))


def _view(items: Sequence[str | Seam], solved: Container[int]) -> str:
    lines: list[str] = []
    for item in items:
        lines += item.shown(item.number in solved) if isinstance(item, Seam) else [item]
    return "\n".join(lines) + "\n"


def read(script: str | Path) -> str:
    """Return the text of a script, given its path from the project's root.

    Raises:
        ValueError: it is missing; the message has the command that restores it.
    """
    return read_utf8(find_script(PROJECT / script))


def restore() -> list[str]:
    """Write the missing exercises with no TODO filled; return their names."""
    missing = [path.name for path in solutions() if not (EXERCISES / path.name).exists()]
    for name in missing:
        write(0, name)
    return missing


def solutions() -> list[Path]:
    """Return all solution files in the order of their TODOs."""
    todos = {path: numbers(path.read_text(), path.name) for path in sorted(SOLUTIONS.glob("*.py"))}
    return sorted(todos, key=lambda path: min(todos[path], default=0))


def drifted() -> list[str]:
    """Return the names of exercises that differ from their solution's view without solved TODOs.

    In a clone, the files in git's index count, so a learner's edits and editors' files do not.
    """
    expected = {path.name: render(path.read_text(), 0, path.name) for path in solutions()}
    actual = _in_git()
    if actual is None:
        actual = {path.name: read_utf8(path) for path in EXERCISES.glob("*.py")}
    return sorted(name for name in expected | actual if expected.get(name) != actual.get(name))


def _in_git() -> dict[str, str] | None:
    """Return the exercises in git's index; None outside of a clone."""

    def git(*words: str) -> str:
        command = ["git", "-C", str(EXERCISES.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    try:
        names = git("ls-files", f"{EXERCISES.name}/*.py").split()
        return {Path(name).name: git("show", f":./{name}") for name in names}
    except (OSError, subprocess.CalledProcessError):
        return None


def write(solved: int, name: str = "train.py") -> Path | None:
    """Write the exercise with `solved` TODOs filled; back up edits first.

    Returns:
        The backup, or None if there were no edits.
    """
    solution, target = SOLUTIONS / name, EXERCISES / name
    if not solution.is_file():
        known = ", ".join(path.name for path in solutions())
        raise ValueError(f"no exercise {name!r}: there are {known}")
    return _replace(target, render(solution.read_text(), solved, name), solution.read_text())


def _replace(target: Path, view: str, solution: str) -> Path | None:
    """Write an exercise; back it up first unless it is a view of the solution."""
    views = {render(solution, k, target.name) for k in range(count(solution) + 1)}
    backup = None
    if target.exists() and target.read_text(errors="replace") not in {*views, view}:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        backup = target.with_name(f"{target.name}.backup-{stamp}")
        backup.write_bytes(target.read_bytes())
    EXERCISES.mkdir(exist_ok=True)
    write_atomically(target, view)
    return backup


def fill(solved: int, name: str = "train.py") -> Path | None:
    """Fill those TODOs up to `solved` that are open, or failed; all other lines stay.

    A TODO has failed if its check found this very text wrong. If hardly anything is left of the
    exercise, it is written anew.

    Returns:
        The backup, or None if there were no edits.
    """
    solution, target = (SOLUTIONS / name).read_text(), EXERCISES / name
    if not target.exists():
        return write(solved, name)
    text = target.read_text()
    items, lines = parse(solution, name), text.splitlines()
    places: list[tuple[Seam, int, int]] = []
    view: list[str] = []
    for item in items:
        first = len(view)
        view += item.shown(False) if isinstance(item, Seam) else [item]
        if isinstance(item, Seam):
            places.append((item, first, len(view)))
    blocks = difflib.SequenceMatcher(None, view, lines, autojunk=False).get_matching_blocks()
    line_of = {a + k: b + k for a, b, size in blocks for k in range(size)}
    if 2 * len(line_of) < len(view):
        return write(solved, name)
    wanted = (open_todos(text, name) | failed_todos(text)) & {*range(1, solved + 1)}
    parts = [
        (
            line_of.get(first, line_of.get(first - 1, -2) + 1),
            line_of.get(end - 1, line_of.get(end, 0) - 1) + 1,
            seam,
        )
        for seam, first, end in places
        if seam.number in wanted
    ]
    lost = {seam.number for first, end, seam in parts if not 0 <= first < end}
    for first, end, seam in reversed(parts):
        if seam.number not in lost:
            lines[first:end] = seam.shown(True)
    return _replace(target, "\n".join(lines) + "\n", solution)


def failed_todos(text: str) -> set[int]:
    """Return the TODOs whose checks found this text of a script wrong."""
    stored, sha = store.read()["checks"], digest(text)
    failed = [
        name
        for name, outcome in stored.items()
        if outcome.get("script") == sha and outcome["correct"] == "failed"
    ]
    return {discovery.exercises()[name].todo for name in failed if name in discovery.exercises()}


def digest(text: str) -> str:
    """Return a short name of a script's text, to store with a check of it."""
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def catch_up(solved: int) -> dict[str, Path | None]:
    """Fill the TODOs up to `solved`, as `fill` does; 0: write all exercises anew.

    Scripts without such a TODO stay as they are.

    Returns:
        The scripts that were written, each with the backup of edits, if any.

    Raises:
        ValueError: there is no such TODO.
    """
    if solved:
        solution_of(solved)  # raises if there is none
    todos = {path.name: numbers(path.read_text(), path.name) for path in solutions()}
    fresh = write if solved == 0 else fill
    return {
        name: fresh(min(solved, script_todos[-1]), name)
        for name, script_todos in todos.items()
        if script_todos[0] <= solved or not solved
    }


def all_states() -> list[dict[str, object]]:
    """Return number, script, state and title of every TODO."""
    rows = [{**row, "script": path.name} for path in solutions() for row in states(path.name)]
    return sorted(rows, key=lambda row: row["todo"])


def states(name: str = "train.py") -> list[dict[str, object]]:
    """Return number, title and state (open, edited, solved) of each TODO of an exercise."""
    text = read(EXERCISES / name)
    solution = (SOLUTIONS / name).read_text()
    items = parse(solution, name)
    edited = {solved: _edited(items, text, solved=solved) for solved in (False, True)}
    rows = []
    for number in numbers(solution, name):
        state = "edited"
        for word, solved in (("open", False), ("solved", True)):
            if number not in edited[solved]:
                state = word
        title = seams(solution, name, number)[0].title
        rows.append({"todo": number, "state": state, "title": title})
    return rows


def open_todos(text: str, name: str = "train.py") -> set[int]:
    """Return the numbers of the TODOs that are untouched in a script, such as a run's snapshot."""
    solution = (SOLUTIONS / name).read_text()
    return {*numbers(solution, name)} - _edited(parse(solution, name), text)


def _edited(items: Sequence[str | Seam], script: str, *, solved: bool = False) -> set[int]:
    """Return the numbers of the TODOs whose code in a script differs from the view."""
    places, end = [], 0
    for item in items:
        start = end
        end += len(item.shown(solved)) if isinstance(item, Seam) else 1
        if isinstance(item, Seam):
            code = "\n".join(item.solution), "\n".join(item.shown(solved)[1:])
            places.append(Place(item.number, start + 1, end + 1, *code))
    every = {item.number for item in items if isinstance(item, Seam)}
    views = [_view(items, todos) for todos in (set(), every)]
    return edited_todos(views[solved], places, script, views[True], exactly=solved)


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
    solved = render(text, count(text), script)
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
