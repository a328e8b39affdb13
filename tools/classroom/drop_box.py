"""Read what learners wrote into the drop box of a class, none of which can be trusted.

A learner can write any content, links, pipes and thousands of files, but only as their own uid. So
a file counts only if its owner is the user in its name, and its newest file is a learner's only
one. Every field is checked; a wrong file is a line with the reason, and all others are shown.
"""

from __future__ import annotations

import json
import secrets
import shlex
import stat
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from course.checks import discovery
from course.checks.shared_progress import (
    CHOICE_CHARACTERS,
    DROP,
    FILE_NAME,
    LIMIT_BYTES,
    PREDICTION_KEY,
)
from course.checks.store import FAILED, NOISY, PASSED, UNMEASURABLE
from course.runs import shared_files
from course.runs.shared_files import account_name, one_line, user_name
from tools.classroom.membership import QUESTION_CHARACTERS

ENDED = ".ended-"  # begins the name of a drop box that is being deleted
MOST_FILES = 20_000  # in the drop box that are looked at
MANY = 20  # files of a learner with which something is wrong
# Who has the files of no account: in a user namespace, anyone can write as 65,536 such uids.
NO_ACCOUNT, NO_NAME = -1, "an unknown account"
CLOCKS_DIFFER = timedelta(minutes=5)  # between machines, at most
TODO_STATES = ("edited", "solved", "given")
CHECK_STATES = (PASSED, FAILED, NOISY, UNMEASURABLE)
LARGEST = 1e100  # number in a prediction; and 1 / it the smallest: bars divide and round
MOST_TRIES, MOST_ENTRIES, CAUSE_CHARACTERS = 99_999, 1000, 200


@dataclass(frozen=True)
class CheckResult:
    """The state of a check; `since` is when it began to fail, if it fails."""

    state: str
    tries: int
    at: datetime
    since: datetime | None
    cause: str


@dataclass(frozen=True)
class Prediction:
    """A prediction, and what the learner measured, if they did."""

    value: float | str
    measured: float | str | None = None


@dataclass(frozen=True)
class Hand:
    """A learner's question, and the check that failed before it, if any."""

    text: str
    check: str
    at: datetime


@dataclass(frozen=True)
class Learner:
    """What one learner sent, with names of this course's exercises and quizzes only."""

    name: str
    sent_at: datetime
    hand: Hand | None = None
    todos: dict[str, str] = field(default_factory=dict)
    checks: dict[str, CheckResult] = field(default_factory=dict)
    quizzes: dict[str, tuple[int, int]] = field(default_factory=dict)  # right, answered
    predictions: dict[str, Prediction] = field(default_factory=dict)


def read(folder: Path) -> tuple[list[Learner], list[str]]:
    """Return the learners of a class by name, and a line about each thing that is wrong.

    Raises:
        ValueError: the folder has no drop box that you can list.
    """
    files, problems = _newest_files(folder)
    learners = []
    for uid, name in files.items():
        try:
            text = shared_files.read_text(folder, DROP, name, owner=uid, limit=LIMIT_BYTES)
            learners.append(parse(text, one_line(user_name(uid))))
        except FileNotFoundError:  # it has left in the meantime
            continue
        except (OSError, ValueError, RecursionError) as error:
            problems.append(f"{one_line(user_name(uid))} is not shown: {_reason(error)}")
    return sorted(learners, key=lambda learner: learner.name), problems


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "the file is nested too deeply"
    return one_line(getattr(error, "strerror", None) or str(error))[:200]


def _newest_files(folder: Path) -> tuple[dict[int, str], list[str]]:
    """Return the name of each user's newest file, and what is wrong with the others."""
    own: dict[int, list[tuple[int, str]]] = defaultdict(list)
    owners, foreign, names = Counter(), Counter(), {NO_ACCOUNT: NO_NAME}
    try:
        for name, status in shared_files.statuses(folder, DROP):
            uid = status.st_uid if status else NO_ACCOUNT
            if uid not in names:  # a directory service may take a while
                names[uid] = account_name(uid)
            uid = uid if names[uid] else NO_ACCOUNT
            owners[uid] += 1
            match = FILE_NAME.fullmatch(name)
            is_own = status and match and match[1] == names[uid]
            if is_own and not status.st_mode & 0o022:  # or a classmate may have moved it here
                own[uid].append((status.st_mtime_ns, name))
            elif not name.startswith("."):  # a draft
                foreign[uid] += 1
            if owners.total() == MOST_FILES:
                break
    except FileNotFoundError:
        raise ValueError(f"{folder} has no drop box, which course class init creates") from None
    except PermissionError:
        owner = user_name(folder.stat().st_uid)
        raise ValueError(
            f"only instructors can list {folder / DROP}, which belongs to {owner}"
        ) from None
    return {uid: max(files)[1] for uid, files in own.items()}, [
        *_floods(folder, owners, names),
        *(
            f"{one_line(names[uid])}: {count:,} links, files of another user's name, or files that "
            f"others can write are not shown"
            for uid, count in foreign.items()
        ),
    ]


def _floods(folder: Path, owners: Counter[int], names: dict[int, str]) -> Iterable[str]:
    if owners.total() == MOST_FILES:
        yield f"only {MOST_FILES:,} files were read, so learners may be missing"
    for uid, count in owners.items():
        if count > MANY:
            whose = "-nouser" if uid == NO_ACCOUNT else f"-uid {uid}"
            remove = f"find {shlex.quote(str(folder / DROP))} {whose} -delete"
            name = one_line(names[uid])
            yield f"{name} has {count:,} files in the drop box. To remove them: {remove}"


def remove(folder: Path) -> tuple[int, list[str]]:
    """Delete the drop box; return the number of files in it, and what could not be deleted.

    Without it, the next check of a learner ends their membership. So it gets another name first: a
    folder that is not empty, which only its learner can delete, would keep the class from ending.

    Raises:
        ValueError, OSError: there is no drop box, or it cannot be renamed.
    """
    with suppress(FileNotFoundError):
        (folder / DROP).rename(folder / f"{ENDED}{secrets.token_hex(4)}")
    count, problems = 0, []
    if not (boxes := [*folder.glob(f"{ENDED}*")]):
        raise ValueError(f"{folder} has no drop box: is it the class folder?")
    for box in boxes:
        for name, status in shared_files.statuses(folder, box.name):
            path = box / name
            try:
                is_folder = status is None or stat.S_ISDIR(status.st_mode)
                path.rmdir() if is_folder else path.unlink(missing_ok=True)
                count += 1
            except OSError as error:
                owner = one_line(user_name(status.st_uid)) if status else NO_NAME
                problems.append(f"{box.name}/{one_line(name)} of {owner}: {error.strerror}")
        with suppress(OSError):
            box.rmdir()
    return count, problems


def parse(text: str, user: str) -> Learner:
    """Return a learner from a file's text.

    Raises:
        ValueError, RecursionError: the text is wrong; the message names the field.
    """
    values = _dict(json.loads(text, parse_constant=_refuse), "the file")
    if values.get("schema") != 1:
        raise ValueError(f"schema is {_shown(values.get('schema'))}: expected 1")
    checks = {name for lab in discovery.labs() for name in lab.all_checks}
    todos, labs = discovery.exercises(), {lab.name for lab in discovery.labs()}
    hand = values.get("hand")
    return Learner(
        user,
        _time(values.get("sent_at"), "sent_at"),
        None if hand is None else _hand(hand, checks),
        _each(values, "todos", todos, lambda x, at: _choice(x, at, TODO_STATES)),
        _each(values, "checks", checks, _check_result),
        _each(values, "quizzes", labs, _counts),
        _each(values, "predictions", PREDICTION_KEY.fullmatch, _prediction),
    )


def _each(
    values: dict[str, Any],
    name: str,
    known: Iterable[str] | Callable[[str], object],
    read: Callable[[Any, str], Any],
) -> dict[str, Any]:
    """Read the entries of an object whose keys are known: another version may have more."""
    entries = _dict(values.get(name, {}), name)
    is_known = known if callable(known) else {*known}.__contains__
    return {key: read(x, f"{name}.{key}") for key, x in entries.items() if is_known(key)}


def _hand(value: Any, checks: set[str]) -> Hand:
    values = _dict(value, "hand")
    text = _text(values.get("text"), "hand.text", QUESTION_CHARACTERS)
    check = _text(values.get("check"), "hand.check", 100)
    return Hand(text, check if check in checks else "", _time(values.get("at"), "hand.at"))


def _check_result(value: Any, name: str) -> CheckResult:
    values = _dict(value, name)
    state = _choice(values.get("state"), f"{name}.state", CHECK_STATES)
    since = values.get("failing_since")
    return CheckResult(
        state,
        _count(values.get("tries"), f"{name}.tries", 1, MOST_TRIES),
        _time(values.get("checked_at"), f"{name}.checked_at"),
        None if since is None else _time(since, f"{name}.failing_since"),
        _text(values.get("cause", ""), f"{name}.cause", CAUSE_CHARACTERS),
    )


def _counts(value: Any, name: str) -> tuple[int, int]:
    values = _dict(value, name)
    answered = _count(values.get("answered"), f"{name}.answered", 0, 100)
    return _count(values.get("right"), f"{name}.right", 0, answered), answered


def _prediction(value: Any, name: str) -> Prediction:
    values = _dict(value, name)
    predicted, measured = (_amount(values.get(x), f"{name}.{x}") for x in ("value", "measured"))
    if predicted is None:
        raise ValueError(f"{name}.value is missing")
    is_same = isinstance(predicted, str) == isinstance(measured, str)
    return Prediction(predicted, measured if is_same else None)


def _amount(value: Any, name: str) -> float | str | None:
    if value is None or isinstance(value, str):
        return value and _text(value, name, CHOICE_CHARACTERS)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value == 0 or 1 / LARGEST < abs(value) < LARGEST):
        raise ValueError(f"{name} is {_shown(value)}: expected a number, or a choice")
    return float(value)


def _dict(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict) or len(value) > MOST_ENTRIES:
        raise ValueError(f"{name} is not an object with at most {MOST_ENTRIES:,} entries")
    return value


def _text(value: Any, name: str, limit: int) -> str:
    if not isinstance(value, str) or len(value) > limit:
        raise ValueError(f"{name} is {_shown(value)}: expected a text of up to {limit} characters")
    return one_line(value).strip()


def _choice(value: Any, name: str, choices: Iterable[str]) -> str:
    if value not in choices:
        raise ValueError(f"{name} is {_shown(value)}: expected {', '.join(choices)}")
    return value


def _count(value: Any, name: str, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} is {_shown(value)}: expected {least} to {most:,}")
    return value


def _time(value: Any, name: str) -> datetime:
    try:
        at = datetime.fromisoformat(value).astimezone()
        if at.tzinfo is None or at.year < 2020 or at > datetime.now().astimezone() + CLOCKS_DIFFER:
            raise ValueError
    except (ValueError, TypeError, OverflowError):
        expected = "a time with its zone, not in the future"
        raise ValueError(f"{name} is {_shown(value)}: expected {expected}") from None
    return at


def _shown(value: Any) -> str:
    return one_line(repr(value))[:60]


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")
