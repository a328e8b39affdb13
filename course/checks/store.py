"""One file beside the runs for what a learner did: runs/progress.json.

It is written whole, under a lock, so that two notebooks at once lose nothing of each other's.
One that cannot be understood is never overwritten before a copy of it lies beside it.
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

from course.runs.files import write_atomically
from course.runs.run import runs_root

SCHEMA = 1
PARTS = ("correct", "mechanism", "effect")  # of a check
UNMEASURABLE = "not measurable here"  # a part's verdict that is neither pass nor failure
UNTIMED = "not looked for"  # the effect's verdict where nothing is to become faster
# For each section: the type of every field that its entries must have.
FIELDS = {
    "predictions": {
        "value": (int, float, str),
        "note": str,
        "rung": str,
        "made_at": str,
        "late": bool,
    },
    "checks": dict.fromkeys(PARTS, str),
    "answers": {"choice": str, "right": bool},
}
LATER = {"measured": (int, float, str)}  # fields that an entry may get
Store = dict[str, dict[str, Any]]


def path() -> Path:
    """Where all of it is stored."""
    return runs_root() / "progress.json"


def read() -> Store:
    """A dict for each section of `FIELDS`, empty where nothing was stored yet.

    predictions: key → entry; checks: name → outcome; answers: quiz → question number → entry.
    A file that cannot be understood counts as empty. A copy of it is kept, and said so.
    """
    try:
        content = path().read_bytes()
    except FileNotFoundError:
        return {name: {} for name in FIELDS}
    try:
        values = json.loads(content)
        _validate(values)
    except ValueError as error:
        _keep_aside(content, error)
        return {name: {} for name in FIELDS}
    return {name: values[name] for name in FIELDS}


@contextmanager
def changing() -> Iterator[Store]:
    """The store, for changes: what it holds at the end is written, unless it is the same."""
    runs_root().mkdir(parents=True, exist_ok=True)
    with FileLock(runs_root() / ".progress.lock", timeout=60):
        store = read()
        before = json.dumps(store)
        yield store
        if json.dumps(store) != before:
            text = json.dumps({"schema": SCHEMA, **store}, indent=1)
            write_atomically(path(), text + "\n")


def now() -> str:
    """The local time, to the second, as text."""
    return datetime.now().isoformat(timespec="seconds")


def save_check(name: str, outcome: dict[str, str]) -> None:
    """Store what a check found; the latest outcome counts.

    Args:
        outcome: a verdict for each of `PARTS`, "passed" for instance.

    Raises:
        ValueError: a part is missing, or its verdict is no text.
    """
    for part in PARTS:
        if not isinstance(outcome.get(part), str) or not outcome[part]:
            raise ValueError(
                f"check {name!r}: the verdict of {part} is {outcome.get(part)!r}: "
                f"a text is needed, for each of {', '.join(PARTS)}"
            )
    with changing() as store:
        store["checks"][name] = {**{part: outcome[part] for part in PARTS}, "checked_at": now()}


def save_answer(quiz: str, number: int, choice: str, right: bool) -> None:
    """Store the answer to a question (counted from 1) of a quiz; the latest one counts."""
    with changing() as store:
        answer = {"choice": choice, "right": right, "answered_at": now()}
        store["answers"].setdefault(quiz, {})[str(number)] = answer


def answers(quiz: str) -> dict[int, dict[str, Any]]:
    """Stored answers of a quiz: question number → {"choice": a letter, "right": a bool, …}."""
    return {int(number): answer for number, answer in read()["answers"].get(quiz, {}).items()}


def _validate(values: Any) -> None:
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        found = values.get("schema") if isinstance(values, dict) else type(values).__name__
        raise ValueError(f"its schema is {found!r}, and this version of the course reads {SCHEMA}")
    for section, types in FIELDS.items():
        entries = _dict(values.get(section), section)
        for key, entry in entries.items():
            nested = section == "answers"
            for number, each in _dict(entry, key).items() if nested else [("1", entry)]:
                if not number.isdigit():
                    raise ValueError(f"{section}, {key}: {number!r} is no question's number")
                _check_fields(_dict(each, key), types, f"{section}, {key}")


def _check_fields(entry: dict[str, Any], types: dict[str, Any], where: str) -> None:
    for field, wanted in types.items():
        if not isinstance(entry.get(field), wanted):
            raise ValueError(f"{where}: {field} is {entry.get(field)!r}")
    for field in LATER.keys() & entry.keys():
        if not isinstance(entry[field], LATER[field]):
            raise ValueError(f"{where}: {field} is {entry[field]!r}")


def _dict(value: Any, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where} is {value!r}, not a group of entries")
    return value


def _keep_aside(content: bytes, error: ValueError) -> None:
    # The name follows from the content, so reading the same broken file twice keeps one copy.
    copy = path().with_name(f"progress.unreadable-{hashlib.sha256(content).hexdigest()[:8]}.json")
    if not copy.exists():
        copy.write_bytes(content)
    print(
        f"{path()} cannot be understood ({error}). It is kept as {copy.name}, and predictions, "
        f"checks and answers start anew. To have them again, mend that copy and put it back.",
        file=sys.stderr,
    )
