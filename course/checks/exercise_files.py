"""Write the scripts in exercises/: fill TODOs or empty them, after a backup of edits."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Container
from datetime import datetime
from pathlib import Path

from course.checks import exercises, store
from course.checks.exercises import Seam, names, parse, render, solution_of, solutions
from course.checks.script_edits import SOLVED
from course.runs import clone
from course.runs.files import write_atomically
from course.text import read_utf8

OWN = "my_script.py"  # in the place of a learner's own script: it has no solution


def restore() -> list[str]:
    """Write the missing exercises with no TODO filled; return their names."""
    missing = [path.name for path in solutions() if not (exercises.EXERCISES / path.name).exists()]
    for name in missing:
        write((), name)
    return missing


def drifted() -> list[str]:
    """Return the names of exercises that differ from their solution's view without solved TODOs.

    In a clone, the files in git's index count, so a learner's edits and editors' files do not.
    """
    expected = {path.name: render(path.read_text(), (), path.name) for path in solutions()}
    actual = _in_git()
    if actual is None:
        actual = {path.name: read_utf8(path) for path in exercises.EXERCISES.glob("*.py")}
    differ = {name for name in expected | actual if expected.get(name) != actual.get(name)}
    return sorted(differ - {OWN})


def _in_git() -> dict[str, str] | None:
    """Return the exercises in git's index; None outside of a clone."""
    project, folder = exercises.EXERCISES.parent, exercises.EXERCISES.name
    try:
        paths = map(Path, clone.git(project, "ls-files", folder).split())
        return {x.name: clone.git(project, "show", f":./{x}") for x in paths if x.suffix == ".py"}
    except ValueError:
        return None


def write(filled: Collection[str], name: str = "train.py") -> Path | None:
    """Write a script with some exercises filled; back up edits first.

    Returns:
        The backup, or None if there were no edits.
    """
    solution = exercises.SOLUTIONS / name
    if not solution.is_file():
        known = ", ".join(path.name for path in solutions())
        raise ValueError(f"no exercise {name!r}: there are {known}")
    return _replace(name, render(solution.read_text(), filled, name))


def _replace(name: str, view: str) -> Path | None:
    """Write an exercise; back it up first unless it is a view of the solution."""
    target, solution = exercises.EXERCISES / name, (exercises.SOLUTIONS / name).read_text()
    known = names(solution, name)
    views = {render(solution, known[:count], name) for count in range(len(known) + 1)}
    backup = None
    if target.exists() and target.read_text(errors="replace") not in {*views, view}:
        stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
        backup = target.with_name(f"{name}.backup-{stamp}")
        backup.write_bytes(target.read_bytes())
    exercises.EXERCISES.mkdir(exist_ok=True)
    write_atomically(target, view)
    return backup


def fill(wanted: Collection[str], name: str = "train.py") -> Path | None:
    """Fill those of these exercises that are open, or failed; all other lines stay.

    An exercise has failed if its check found this very text wrong. If hardly anything is left of
    the script, it is written again.

    Returns:
        The backup, or None if there were no edits.
    """
    target = exercises.EXERCISES / name
    if not target.exists():
        return write(wanted, name)
    text = target.read_text()
    chosen = (exercises.open_todos(text, name) | failed_todos(text)) & {*wanted}
    filled = _rewritten(text, chosen, name, solved=True)
    return _replace(name, filled) if filled else write(wanted, name)


def _rewritten(text: str, wanted: Container[str], name: str, *, solved: bool) -> str:
    """Return a script with new lines in the seams of some exercises; all other lines stay.

    A seam whose place cannot be found stays, too. If hardly anything is left of the script, the
    result is "".
    """
    given, lines = {*SOLVED.findall(text)}, text.splitlines()
    places: list[tuple[Seam, int, int]] = []
    view: list[str] = []
    for item in parse((exercises.SOLUTIONS / name).read_text(), name):
        first = len(view)
        view += item.shown(item.name in given) if isinstance(item, Seam) else [item]
        if isinstance(item, Seam):
            places.append((item, first, len(view)))
    blocks = difflib.SequenceMatcher(None, view, lines, autojunk=False).get_matching_blocks()
    line_of = {a + k: b + k for a, b, size in blocks for k in range(size)}
    if 2 * len(line_of) < len(view):
        return ""
    parts = [
        (
            line_of.get(first, line_of.get(first - 1, -2) + 1),
            line_of.get(end - 1, line_of.get(end, 0) - 1) + 1,
            seam,
        )
        for seam, first, end in places
        if seam.name in wanted
    ]
    lost = {seam.name for first, end, seam in parts if not 0 <= first < end}
    for first, end, seam in reversed(parts):
        if seam.name not in lost:
            lines[first:end] = seam.shown(solved)
    return "\n".join(lines) + "\n"


def failed_todos(text: str) -> set[str]:
    """Return the exercises whose checks found this text of a script wrong."""
    stored, sha = store.read()["checks"], exercises.digest(text)
    return {
        name
        for name, outcome in stored.items()
        if outcome.get("script") == sha and outcome["correct"] == "failed"
    }


def reset(wanted: Collection[str] = ()) -> dict[str, Path | None]:
    """Empty some exercises, or write all scripts with none filled.

    Returns:
        The scripts that were written, each with the backup of edits, if any.

    Raises:
        ValueError: there is no such exercise, or its lines cannot be found. Nothing is written.
    """
    if not wanted:
        return {path.name: write((), path.name) for path in solutions()}
    of_scripts: dict[str, set[str]] = {}
    for exercise in wanted:
        of_scripts.setdefault(solution_of(exercise), set()).add(exercise)
    texts = {name: _emptied(name, chosen) for name, chosen in of_scripts.items()}
    return {name: _replace(name, text) for name, text in texts.items()}


def _emptied(name: str, wanted: set[str]) -> str:
    """Return a script with some exercises open; raise ValueError if others would change, too."""
    text = exercises.read(exercises.EXERCISES / name)
    emptied = _rewritten(text, wanted, name, solved=False)
    before, after = exercises.states_of(text, name), exercises.states_of(emptied, name)
    kept = {todo for todo, state in before.items() if state == after[todo]} if emptied else set()
    # In a script that Python cannot read, states are guesses.
    others = before.keys() - wanted if _is_python(text) else set()
    if not emptied or not others <= kept or {after[todo] for todo in wanted} != {"open"}:
        raise ValueError(
            f"{exercises.EXERCISES.name}/{name} has changed too much to find the lines of "
            f"{', '.join(sorted(wanted))}: course exercises --reset empties all, after a backup"
        )
    return emptied


def _is_python(text: str) -> bool:
    try:
        compile(text, "script", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def catch_up(exercise: str) -> dict[str, Path | None]:
    """Fill the exercises up to one, as `fill` does; scripts without one of them stay as they are.

    Returns:
        The scripts that were written, each with the backup of edits, if any.

    Raises:
        ValueError: there is no such exercise.
    """
    wanted = exercises.upto(exercise)
    return {
        path.name: fill(wanted, path.name)
        for path in solutions()
        if {*names(path.read_text(), path.name)} & {*wanted}
    }
