"""A learner's predictions, checks and answers: progress.json in the folder of the runs.

It is written atomically under a lock, so that two notebooks at once lose nothing. Before an
unreadable file is replaced, a copy of it is stored next to it.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from course.runs.files import complete_file, write_atomically
from course.runs.run import runs_root

SCHEMA = 1
PARTS = ("correct", "mechanism", "effect")  # of a check
PASSED, FAILED = "passed", "failed"  # verdicts
UNMEASURABLE = "not measurable here"  # a verdict that is neither pass nor failure
NOISY = "too noisy to judge"  # neither; a repetition may show it
UNTIMED = "not checked"  # the effect's verdict if no speedup is expected
SECTIONS = ("predictions", "checks", "answers")
Store = dict[str, dict[str, Any]]


def path() -> Path:
    """Return the path of the file."""
    return runs_root() / "progress.json"


def read() -> Store:
    """Return a dict for each of `SECTIONS`, empty if nothing is stored.

    predictions: key → entry; checks: name → outcome; answers: quiz → question number → entry.
    An unreadable file counts as empty: a copy is stored, and a message says so.
    """
    file = path()
    if not file.is_file():  # not written yet
        return {name: {} for name in SECTIONS}
    content = file.read_bytes()
    try:
        values = json.loads(content)
        if values["schema"] != SCHEMA:
            raise ValueError(f"schema {values['schema']!r}, expected {SCHEMA}")
        return {name: dict(values[name]) for name in SECTIONS}
    except (ValueError, KeyError, TypeError) as error:
        _copy_unreadable(content, error)
        return {name: {} for name in SECTIONS}


@contextmanager
def changing() -> Iterator[Store]:
    """Yield the store for changes, and write it at the end if it changed."""
    path().parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path().with_name(".progress.lock"), mode=0o600, timeout=60):
        store = read()
        before = json.dumps(store)
        yield store
        if json.dumps(store) != before:
            text = json.dumps({"schema": SCHEMA, **store}, indent=1)
            write_atomically(path(), text + "\n", mode=0o600)  # a home may be open to classmates


def now() -> str:
    """Return the local time, to the second, as text."""
    return datetime.now().isoformat(timespec="seconds")


def state_of(outcome: dict[str, Any]) -> str:
    """Sum up the verdicts of a check in one word, "open" if it has none; a failure counts first."""
    verdicts = {outcome.get(part, "") for part in PARTS} - {UNTIMED}
    if verdicts == {""}:
        return "open"
    if len(verdicts) == 1:
        return verdicts.pop()
    return FAILED if FAILED in verdicts else (verdicts - {PASSED}).pop()


def answers(quiz: str) -> dict[int, dict[str, Any]]:
    """Return the stored answers of a quiz by question number, with "choice" and "right"."""
    return {int(number): answer for number, answer in read()["answers"].get(quiz, {}).items()}


def _copy_unreadable(content: bytes, error: Exception) -> None:
    # The name depends on the content, so a file that is read twice gives one copy.
    copy = path().with_name(f"progress.unreadable-{hashlib.sha256(content).hexdigest()[:8]}.json")
    with complete_file(copy, mode=0o600) as file:
        file.write(content)
    print(
        f"{path()} is unreadable ({error!r}). A copy is {copy.name}; predictions, checks and "
        f"answers start from zero. To get them back, repair the copy and rename it to "
        f"{path().name}.",
        file=sys.stderr,
    )
