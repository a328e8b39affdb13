"""Exercises from solutions: seams in the solution become the TODOs that learners fill.

A seam is a stretch of lines in solutions/*.py:

    # >>> TODO 2, day 1: what is to be done
    the_solution()
    # --- before
    # what_stands_there_until_then()
    # <<<

A TODO may have several seams. A view with k TODOs solved shows the solution where the number
is at most k, and elsewhere the lines after "before", so every view runs.

TODOs are numbered over all scripts: a day's script goes on where that of the days before ends.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from textwrap import dedent

from course.jobs.plan import find_script
from course.runs.files import write_atomically
from course.runs.run import ADDED, PROJECT, runs_root

SOLUTION = "solutions/train.py"
OPEN = re.compile(r"^(\s*)# >>> TODO (\d+)(?:, day (\d+))?: (.+)$")
MARKER = re.compile(r"^\s*#\s*(>>>|---\s*before|<<<)")
SOLUTIONS, EXERCISES = PROJECT / "solutions", PROJECT / "exercises"


class SeamError(ValueError):
    """A marker that is nested, unclosed or misnumbered; the message has file and line."""


@dataclass(frozen=True)
class Seam:
    """One place of one TODO. `line` is that of its opening marker, counted from 1."""

    number: int
    title: str
    indent: str
    line: int
    solution: tuple[str, ...]
    before: tuple[str, ...]
    day: str = ""  # on which it is filled

    def shown(self, solved: bool) -> list[str]:
        """The lines that a view has here."""
        when = f", day {self.day}" if self.day else ""
        mark = f"{self.indent}# TODO {self.number}{when}{', solved' * solved}: {self.title}"
        return [mark, *(self.solution if solved else self.before)]


@lru_cache(maxsize=64)  # whoever asks for a TODO asks about every solution
def parse(text: str, name: str = "text") -> tuple[str | Seam, ...]:
    """The lines of a solution, with each seam as one item.

    Raises:
        SeamError: markers that are nested, unclosed, stray, or misnumbered.
    """
    items: list[str | Seam] = []
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if opened := OPEN.match(line):
            items.append(_seam(opened, number, lines, name))
        elif MARKER.match(line):
            raise SeamError(f"{name}, line {number}: {line.strip()!r} opens no TODO n: title")
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
    raise SeamError(f"{name}, line {first}: the seam of TODO {todo} is never closed by # <<<")


def _uncomment(line: str, indent: str) -> str:
    return indent + line.removeprefix(indent).removeprefix("# ") if line.strip() else line


def _check_numbers(seams: list[Seam], name: str) -> None:
    numbers = sorted({seam.number for seam in seams})
    for wanted, number in enumerate(numbers, max(1, numbers[0]) if numbers else 1):
        if number != wanted:
            line = next(seam.line for seam in seams if seam.number == number)
            raise SeamError(
                f"{name}, line {line}: TODO {number} where TODO {wanted} is missing; "
                f"TODOs are numbered one after another, without a gap"
            )


def numbers(text: str, name: str = "text") -> list[int]:
    """The numbers of a solution's TODOs, in their order."""
    return sorted({item.number for item in parse(text, name) if isinstance(item, Seam)})


def count(text: str) -> int:
    """The number of a solution's last TODO: with so many solved, all of it is."""
    return max(numbers(text), default=0)


def solution_of(todo: int) -> str:
    """The name of the script that has a TODO.

    Raises:
        ValueError: no script has it; the message says which there are.
    """
    known = {path.name: numbers(path.read_text(), path.name) for path in solutions()}
    for name, found in known.items():
        if todo in found:
            return name
    there = "; ".join(f"{name} has {each[0]} to {each[-1]}" for name, each in known.items())
    raise ValueError(f"there is no TODO {todo}: {there}")


def yours(todo: int) -> str:
    """The exercise that has a TODO, with its folder: what the learner edits."""
    return f"{EXERCISES.name}/{solution_of(todo)}"


def original_of(script: Path | str) -> str:
    """The solution that a script is a version of: the one of its name, else the first."""
    name = Path(script).name
    return name if (SOLUTIONS / name).is_file() else Path(SOLUTION).name


def render(text: str, solved: int, name: str = "text") -> str:
    """The view of a solution in which the first `solved` TODOs are filled.

    Raises:
        ValueError: fewer than none or more than there are.
    """
    items, total = parse(text, name), count(text)
    if not 0 <= solved <= total:
        raise ValueError(f"{name} has TODOs up to {total}: choose 0 to {total}, not {solved}")
    lines: list[str] = []
    for item in items:
        lines += item.shown(item.number <= solved) if isinstance(item, Seam) else [item]
    return "\n".join(lines) + "\n"


def read(script: str | Path) -> str:
    """The text of a script, by its path from the project's root.

    Raises:
        ValueError: it is missing; the message has the command that restores an exercise.
    """
    return find_script(PROJECT / script).read_text()


def restore() -> list[str]:
    """Write the exercises that are missing, with no TODO filled; returns their names."""
    missing = [path.name for path in solutions() if not (EXERCISES / path.name).exists()]
    for name in missing:
        write(0, name)
    return missing


def solutions() -> list[Path]:
    """Every solution file, in the order of its TODOs."""
    found = {path: numbers(path.read_text(), path.name) for path in sorted(SOLUTIONS.glob("*.py"))}
    return sorted(found, key=lambda path: min(found[path], default=0))


def drifted() -> list[str]:
    """Names of exercises that are not the untouched view of their solution.

    In a clone it is asked of what git would commit: what a learner has written there since, and
    what editors leave beside it, is no drift.
    """
    wanted = {path.name: render(path.read_text(), 0, path.name) for path in solutions()}
    found = _as_in_git()
    if found is None:
        found = {path.name: path.read_text() for path in EXERCISES.glob("*.py")}
    return sorted(name for name in wanted | found if wanted.get(name) != found.get(name))


def _as_in_git() -> dict[str, str] | None:
    """The exercises as they stand in git's index; None where they are in no clone."""

    def ask(*words: str) -> str:
        command = ["git", "-C", str(EXERCISES.parent), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    try:
        names = ask("ls-files", f"{EXERCISES.name}/*.py").split()
        return {Path(name).name: ask("show", f":./{name}") for name in names}
    except (OSError, subprocess.CalledProcessError):
        return None


def write(solved: int, name: str = "train.py") -> Path | None:
    """Write the exercise with `solved` TODOs filled; edits are copied to a backup first.

    Returns:
        The backup, or None where there was nothing of the learner's to keep.
    """
    solution, target = SOLUTIONS / name, EXERCISES / name
    if not solution.is_file():
        known = ", ".join(path.name for path in solutions())
        raise ValueError(f"no exercise {name!r}: there are {known}")
    text = solution.read_text()
    view = render(text, solved, name)
    views = {render(text, k, name) for k in range(count(text) + 1)}
    backup = None
    if target.exists() and target.read_text() not in views:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        backup = target.with_name(f"{name}.backup-{stamp}")
        backup.write_bytes(target.read_bytes())
    EXERCISES.mkdir(exist_ok=True)
    write_atomically(target, view)
    return backup


def catch_up(solved: int) -> dict[str, Path | None]:
    """Write exercises with all TODOs filled up to one; scripts that have none yet stay as they are.

    Returns:
        The scripts that were written, each with the backup of what was the learner's, if any.

    Raises:
        ValueError: there is no such TODO.
    """
    if solved:
        solution_of(solved)  # or it says which there are
    wanted = {path.name: numbers(path.read_text(), path.name) for path in solutions()}
    return {
        name: write(min(solved, found[-1]), name)
        for name, found in wanted.items()
        if found[0] <= solved or not solved
    }


def all_states() -> list[dict[str, object]]:
    """Of all exercises, TODO by TODO: number, script, state and title."""
    rows = [{**row, "script": path.name} for path in solutions() for row in states(path.name)]
    return sorted(rows, key=lambda row: row["todo"])


def states(name: str = "train.py") -> list[dict[str, object]]:
    """For each TODO of an exercise: number, title, and whether it is open, edited or solved."""
    text = read(EXERCISES / name)
    items = parse((SOLUTIONS / name).read_text(), name)
    seams = [item for item in items if isinstance(item, Seam)]
    changed = {solved: _changed(items, solved, text.splitlines()) for solved in (False, True)}
    rows = []
    for number in sorted({seam.number for seam in seams}):
        state = "edited"
        for word, solved in (("open", False), ("solved", True)):
            if number not in changed[solved]:
                state = word
        title = next(seam.title for seam in seams if seam.number == number)
        rows.append({"todo": number, "state": state, "title": title})
    return rows


def open_todos(text: str, name: str = "train.py") -> set[int]:
    """Numbers of the TODOs that a script, a run's snapshot say, still has untouched."""
    items = parse((SOLUTIONS / name).read_text(), name)
    numbers = {item.number for item in items if isinstance(item, Seam)}
    return numbers - _changed(items, False, text.splitlines())


def _changed(items: Sequence[str | Seam], solved: bool, exercise: list[str]) -> set[int]:
    """Numbers of the TODOs at whose places the exercise differs from the view."""
    view: list[str] = []
    places: list[tuple[int, int, int]] = []
    for item in items:
        shown = item.shown(solved) if isinstance(item, Seam) else [item]
        if isinstance(item, Seam):
            places.append((item.number, len(view), len(view) + len(shown)))
        view += shown
    edits = difflib.SequenceMatcher(None, view, exercise, autojunk=False).get_opcodes()

    def touches(first: int, last: int, begin: int, end: int) -> bool:
        if first == last:  # lines put in; right after a place they belong to it
            return begin < first <= end
        return first < end and last > begin

    return {
        number
        for number, begin, end in places
        for kind, first, last, _, _ in edits
        if kind != "equal" and touches(first, last, begin, end)
    }


def script_variant(name: str, after: Mapping[str, str], script: str = SOLUTION) -> Path:
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
    made = "\n".join(lines) + "\n"
    target.write_text(made)
    added = {anchor.strip(): dedent(new).strip() for anchor, new in after.items()}
    added |= {} if script == SOLUTION else {"script": script}
    known = {"added": added, "sha256": hashlib.sha256(made.encode()).hexdigest()}
    target.with_suffix(ADDED).write_text(json.dumps(known, indent=1))
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
