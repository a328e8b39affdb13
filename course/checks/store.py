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

from course.runs.files import write_atomically
from course.runs.run import runs_root

SCHEMA = 1
PARTS = ("correct", "mechanism", "effect")  # of a check
UNMEASURABLE = "not measurable here"  # a verdict that is neither pass nor failure
UNTIMED = "not looked for"  # the effect's verdict if no speedup is expected
# For each section the types of its entries' fields.
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
OPTIONAL = {"measured": (int, float, str)}
Store = dict[str, dict[str, Any]]


def path() -> Path:
    """Return the path of the file."""
    return runs_root() / "progress.json"


def read() -> Store:
    """Return a dict for each section of `FIELDS`, empty if nothing is stored.

    predictions: key → entry; checks: name → outcome; answers: quiz → question number → entry.
    An unreadable file counts as empty: a copy is stored, and a message says so.
    """
    try:
        content = path().read_bytes()
    except FileNotFoundError:
        return {name: {} for name in FIELDS}
    try:
        values = json.loads(content)
        _validate(values)
    except (ValueError, KeyError, AttributeError) as error:
        _copy_unreadable(content, error)
        return {name: {} for name in FIELDS}
    return {name: values[name] for name in FIELDS}


@contextmanager
def changing() -> Iterator[Store]:
    """Yield the store for changes, and write it at the end if it changed."""
    runs_root().mkdir(parents=True, exist_ok=True)
    with FileLock(runs_root() / ".progress.lock", timeout=60):
        store = read()
        before = json.dumps(store)
        yield store
        if json.dumps(store) != before:
            text = json.dumps({"schema": SCHEMA, **store}, indent=1)
            write_atomically(path(), text + "\n")


def now() -> str:
    """Return the local time, to the second, as text."""
    return datetime.now().isoformat(timespec="seconds")


def save_check(name: str, outcome: dict[str, str]) -> None:
    """Store the outcome of a check; the latest one counts.

    Args:
        outcome: a verdict such as "passed" for each of `PARTS`.

    Raises:
        ValueError: a part is missing, or its verdict is not a text.
    """
    for part in PARTS:
        if not isinstance(outcome.get(part), str) or not outcome[part]:
            raise ValueError(
                f"check {name!r}: the verdict of {part} is {outcome.get(part)!r}: "
                f"expected a text for each of {', '.join(PARTS)}"
            )
    with changing() as store:
        store["checks"][name] = {**{part: outcome[part] for part in PARTS}, "checked_at": now()}


def save_answer(quiz: str, number: int, choice: str, right: bool) -> None:
    """Store the answer to a question (numbered from 1) of a quiz; the latest one counts."""
    with changing() as store:
        answer = {"choice": choice, "right": right, "answered_at": now()}
        store["answers"].setdefault(quiz, {})[str(number)] = answer


def answers(quiz: str) -> dict[int, dict[str, Any]]:
    """Return the stored answers of a quiz by question number, with "choice" and "right"."""
    return {int(number): answer for number, answer in read()["answers"].get(quiz, {}).items()}


def _validate(values: Any) -> None:
    if not isinstance(values, dict) or values.get("schema") != SCHEMA:
        raise ValueError(f"expected a file with schema {SCHEMA}")
    for section, types in FIELDS.items():
        for key, entry in values[section].items():
            nested = section == "answers"
            for number, fields in entry.items() if nested else [("1", entry)]:
                if not number.isdigit():
                    raise ValueError(f"{section}, {key}: {number!r} is no number")
                for field in (*types, *(OPTIONAL.keys() & fields.keys())):
                    if not isinstance(fields.get(field), (types | OPTIONAL)[field]):
                        raise ValueError(f"{section}, {key}: {field} is {fields.get(field)!r}")


def _copy_unreadable(content: bytes, error: Exception) -> None:
    # The name depends on the content, so a file that is read twice gives one copy.
    copy = path().with_name(f"progress.unreadable-{hashlib.sha256(content).hexdigest()[:8]}.json")
    if not copy.exists():
        copy.write_bytes(content)
    print(
        f"{path()} is unreadable ({error}). A copy is {copy.name}; predictions, checks and answers "
        f"start from zero. To get them back, repair the copy and rename it to {path().name}.",
        file=sys.stderr,
    )
