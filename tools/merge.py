"""Merge a learner's edits of a file with the course's changes: text by line, notebooks by cell.

nbdime is not used: it merges the source of a cell by line, which joined two lines of code into one,
and of two cells that were inserted in one place it kept only the learner's.
"""

from __future__ import annotations

import json
import subprocess
from difflib import SequenceMatcher
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from course.checks.exercises import render, seams
from course.checks.script_edits import SOLVED
from course.text import shortened


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
        return Merged(versions.ours, f"all lines, because in the merged script {error}")
    return merged


def merge_text(versions: Versions) -> Merged:
    """Merge a text by lines."""
    versions = _with_new_comments(versions)
    with TemporaryDirectory() as folder:
        paths = [Path(folder, name) for name in ("ours", "base", "theirs")]
        for path, text in zip(paths, (versions.ours, versions.base, versions.theirs)):
            path.write_text(text, encoding="utf-8")
        command = ["git", "merge-file", "--stdout", "--ours", *map(str, paths)]
        merged = subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout
        command.remove("--ours")
        conflicts = subprocess.run(command, capture_output=True).returncode  # their number
    return Merged(merged, f"{conflicts} place{'s' * (conflicts > 1)}" if conflicts else "")


def _with_new_comments(versions: Versions) -> Versions:
    """Put the course's new comments into base and ours, where ours has the old or the new one.

    A TODO's comment is next to the learner's lines, so that git would see a conflict.
    """
    base, ours, theirs = (text.splitlines(keepends=True) for text in versions)
    old_in_ours, new_in_ours = _places(base, ours), _places(theirs, ours)
    blocks = SequenceMatcher(None, base, theirs, autojunk=False).get_opcodes()
    pairs = [
        (old, new)
        for tag, first, end, start, stop in blocks
        if tag == "replace" and end - first == stop - start
        for old, new in zip(range(first, end), range(start, stop))
    ]
    for old, new in pairs:
        if all(line.lstrip().startswith("#") for line in (base[old], theirs[new])):
            if old in old_in_ours:
                ours[old_in_ours[old]] = base[old] = theirs[new]
            elif new in new_in_ours:
                base[old] = theirs[new]
    return Versions("".join(base), "".join(ours), versions.theirs)


def _places(lines: list[str], others: list[str]) -> dict[int, int]:
    """Return the numbers of lines that others have, too, with their numbers there."""
    blocks = SequenceMatcher(None, lines, others, autojunk=False).get_matching_blocks()
    return {block.a + i: block.b + i for block in blocks for i in range(block.size)}


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
    except (MemoryError, RecursionError):
        return "an expression is nested too deeply"
    return ""


def merge_notebook(base: str, ours: str, theirs: str) -> Merged:
    """Merge a notebook by its cells' ids; where both changed a cell, ours stays.

    Outputs stay next to the code that computed them, and so does the choice of a kernel.

    Raises:
        ValueError: one of them is no notebook, or has other ids.
    """
    books = [_read_notebook(text) for text in (base, ours, theirs)]
    old, mine, new = ({cell["id"]: cell for cell in book["cells"]} for book in books)
    if 2 * len(old.keys() & mine.keys()) < len(old):
        raise ValueError("its cells have different ids")
    edited = {name for name, cell in mine.items() if not _same(cell, old.get(name))}
    changed = {name for name, cell in new.items() if not _same(cell, old.get(name))}
    deleted, removed = old.keys() - mine.keys(), old.keys() - new.keys()
    for name in new.keys() & mine.keys() - edited:
        if _same(mine[name], new[name]):
            parts = ("outputs", "execution_count")
            new[name] |= {part: mine[name][part] for part in parts if part in mine[name]}
    chosen = new | {name: mine[name] for name in edited}
    cells = [chosen[name] for name in new if name in mine or name not in old]
    _insert(cells, books[1]["cells"], edited - new.keys())
    metadata = books[2]["metadata"] | books[1]["metadata"]
    text = json.dumps(
        books[2] | {"cells": cells, "metadata": metadata}, ensure_ascii=False, indent=1
    )
    both = (edited & changed) | (edited & removed) | (deleted & changed)
    kept = [
        _first_line(cell) + " (deleted)" * (name in deleted)
        for name, cell in (old | mine).items()
        if name in both and not _same(mine.get(name), new.get(name))
    ]
    shown = "the cell " * bool(kept) + "; ".join(kept)
    return Merged(f"{text}\n", shown, is_edited=bool(edited or deleted))


def _first_line(cell: dict[str, Any]) -> str:
    return f"`{shortened(''.join(cell['source']).partition(chr(10))[0], 60)}`"


def _read_notebook(text: str) -> dict[str, Any]:
    """Return a notebook as JSON; of two cells with one id, the second gets another."""
    seen: set[str] = set()
    try:
        notebook = json.loads(text)
        for cell in notebook["cells"]:
            while cell["id"] in seen:
                cell["id"] += "-2"
            seen.add(cell["id"])
            "".join([*cell["source"], cell["cell_type"], *notebook["metadata"]])  # or raise
        notebook["metadata"] = {**notebook["metadata"]}
        json.dumps(notebook, ensure_ascii=False).encode()  # or raise: half a surrogate pair
    except (KeyError, TypeError, ValueError, RecursionError):
        raise ValueError("it is not a notebook, or its cells have no ids") from None
    return notebook


def _same(cell: dict[str, Any] | None, other: dict[str, Any] | None) -> bool:
    keys = [(part["cell_type"], "".join(part["source"])) for part in (cell, other) if part]
    return len(keys) == 2 and keys[0] == keys[1]


def _insert(cells: list[dict], ours: list[dict], wanted: set[str]) -> None:
    """Insert some of our cells, each after the one that it followed."""
    at = 0
    for cell in ours:
        names = [known["id"] for known in cells]
        if cell["id"] in wanted:
            cells.insert(at, cell)
            at += 1
        elif cell["id"] in names:
            at = names.index(cell["id"]) + 1
