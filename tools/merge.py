"""Merge a learner's edits of a file with the course's changes: text by line, notebooks by cell.

nbdime is not used: it merges the source of a cell by line, which joined two lines of code into one,
and of two cells that were inserted in one place it kept only the learner's.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple

from course.checks.exercises import render, seams
from course.checks.script_edits import SOLVED

if TYPE_CHECKING:
    from nbformat import NotebookNode


class Merged(NamedTuple):
    """A file after a merge.

    kept: where the learner's version stays although the course changed it, in words; "" if nowhere.
    is_edited: False for a notebook that was only executed.
    """

    text: str
    kept: str = ""
    is_edited: bool = True


class Versions(NamedTuple):
    """The text of a file: the course's before the update, the learner's, and the course's after."""

    base: str
    ours: str
    theirs: str


def merge(name: str, versions: Versions, solutions: tuple[str, str] | None) -> Merged:
    """Merge a file; where both changed the same, ours stays.

    Args:
        name: its path, from the project's root.
        solutions: the solution that it is generated from, before and after; None for any file that
            is no exercise.

    Raises:
        ValueError: a notebook that cannot be read, or whose cells have other ids.
    """
    if name.endswith(".ipynb"):
        return merge_notebook(*versions)
    merged = merge_exercise(versions, solutions) if solutions else merge_text(versions)
    error = _error(merged.text) if name.endswith(".py") else ""
    if error and not _error(versions.ours):
        return Merged(versions.ours, f"all of it, because with the new lines, {error}")
    return merged


def merge_text(versions: Versions) -> Merged:
    """Merge a text by lines."""
    with TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("ours", "base", "theirs")]
        for path, text in zip(paths, (versions.ours, versions.base, versions.theirs)):
            path.write_text(text, encoding="utf-8")
        command = ["git", "merge-file", "--stdout", "--ours", *map(str, paths)]
        merged = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
        command.remove("--ours")
        conflicts = subprocess.run(command, capture_output=True).returncode  # their number
    return Merged(merged, f"{conflicts} place{'s' * (conflicts > 1)}" if conflicts else "")


def merge_exercise(versions: Versions, solutions: tuple[str, str]) -> Merged:
    """Merge a script of exercises/; name the TODOs in which ours stays.

    A TODO that `course exercises --upto` filled gets the new solution.
    """
    given = {*SOLVED.findall(versions.ours)}
    views = versions.base, versions.theirs
    try:
        if all(render(text, ()) == view for text, view in zip(solutions, views)):
            views = tuple(render(text, given) for text in solutions)
        old, new = (seams(text) for text in solutions)
    except ValueError:  # markers of another version of the course
        return merge_text(versions)
    merged = merge_text(Versions(views[0], versions.ours, views[1]))
    known = {line for seam in old for line in seam.shown(seam.name in given)}
    known |= {*merged.text.splitlines()}
    todos = dict.fromkeys(seam.name for seam in new if {*seam.shown(seam.name in given)} - known)
    if merged.kept and todos:
        return merged._replace(kept=f"{merged.kept}, TODO {', '.join(todos)}")
    return merged


def _error(text: str) -> str:
    try:
        compile(text, "script", "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        return f"line {getattr(error, 'lineno', '?')} is wrong: {error.args[0]}"
    return ""


def merge_notebook(base: str, ours: str, theirs: str) -> Merged:
    """Merge a notebook by its cells' ids; where both changed a cell, ours stays.

    Outputs stay next to the code that computed them, and so does the choice of a kernel.

    Raises:
        ValueError: one of them is no notebook, or has other ids.
    """
    import nbformat

    notebooks = [_read_notebook(text) for text in (base, ours, theirs)]
    old, mine, new = ({cell.id: cell for cell in book.cells} for book in notebooks)
    if 2 * len(old.keys() & mine.keys()) < len(old):
        raise ValueError("its cells have lost their ids")
    edited = {name for name, cell in mine.items() if not _same(cell, old.get(name))}
    kept = {name for name in edited & new.keys() if not _same(mine[name], new[name])}
    kept &= {name for name in new if not _same(new[name], old.get(name))}
    cells = [
        _merge_cell(mine.get(name), cell, is_edited=name in edited)
        for name, cell in new.items()
        if name in mine or name not in old
    ]
    _insert(cells, notebooks[1].cells, edited - new.keys())
    merged = notebooks[2]
    merged.cells = cells
    merged.metadata |= notebooks[1].metadata
    names = "; ".join(mine[name].source.partition("\n")[0][:60] for name in mine if name in kept)
    is_edited = bool(edited or old.keys() - mine.keys())
    return Merged(nbformat.writes(merged) + "\n", f"cell {names}" if kept else "", is_edited)


def _read_notebook(text: str) -> NotebookNode:
    import nbformat

    try:
        notebook = nbformat.reads(text, as_version=4)
        missing = [cell for cell in notebook.cells if "id" not in cell]
    except (AttributeError, KeyError, TypeError, ValueError, nbformat.ValidationError) as error:
        raise ValueError(f"it is no notebook: {str(error).partition(chr(10))[0]}") from None
    if missing:
        raise ValueError("its cells have no ids")
    return notebook


def _same(cell: NotebookNode, other: NotebookNode | None) -> bool:
    return other is not None and (cell.cell_type, cell.source) == (other.cell_type, other.source)


def _merge_cell(mine: NotebookNode | None, new: NotebookNode, *, is_edited: bool) -> NotebookNode:
    """Return the learner's cell if it was edited; else the new one, with outputs that fit."""
    if mine is not None and is_edited:
        return mine
    if mine is not None and _same(mine, new) and new.cell_type == "code":
        new.outputs, new.execution_count = mine.outputs, mine.execution_count
    return new


def _insert(cells: list[NotebookNode], ours: list[NotebookNode], wanted: set[str]) -> None:
    """Insert some of our cells, each after the one that it followed."""
    before = ""
    for cell in ours:
        if cell.id in wanted:
            names = ["", *(known.id for known in cells)]
            cells.insert(names.index(before), cell)
        if cell.id in {known.id for known in cells}:
            before = cell.id
