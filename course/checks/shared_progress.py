"""Send a learner's progress to the class that they joined: one small file, after each change.

    FOLDER/drop/USER-RANDOM.json

Before a learner joins, nothing is sent (`tools/classroom/membership.py` joins and leaves). What is
sent: states of TODOs and checks, in the course's words why checks failed, counts of quizzes,
predictions, and a question if the learner raised their hand. Never scripts, logs, names of files,
notes, or messages of errors.

Learners can create files in the drop box (mode 3733), but can't list it, and each file is readable
only for the instructors (0640, the drop box's group). On a shared disk, locks may not work: each
learner writes only their own file, next to the old one, and renames it.
"""

from __future__ import annotations

import json
import math
import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

from filelock import FileLock

from course.checks import store
from course.checks.causes import cause_of
from course.checks.store import FAILED, PASSED, state_of
from course.runs.files import complete_file, read_dict, write_atomically
from course.runs.shared_files import ACL_OWNING_GROUP, access_list, user_name

DROP = "drop"
SCHEMA, LIMIT_BYTES = 1, 16 * 1024
FILE_NAME = re.compile(r"(.+)-[0-9a-f]{16}\.json", re.DOTALL)
PREDICTION_KEY = re.compile(r"[\w.-]{1,40}( on [\w.-]{1,40})?")  # no sentence of the learner's
CHOICE_CHARACTERS = 60


@contextmanager
def changing() -> Iterator[store.Store]:
    """Change the stored progress as `store.changing` does, then send it if a class was joined."""
    with store.changing() as values:
        yield values
    send()


def save_check(
    name: str, outcome: dict[str, str], parts: Sequence[Any] = (), sentences: Iterable[str] = ()
) -> None:
    """Store the outcome of a check, a verdict for each of `PARTS`; the latest one counts.

    Args:
        outcome: may also have "script", the digest of the text that was checked.
        parts, sentences: those of `causes.cause_of`. The cause is kept after the check has passed.
    """
    at, cause = store.now(), cause_of(name, parts, sentences)
    with changing() as values:
        before = values["checks"].get(name, {})
        entry = {**outcome, "checked_at": at, "tries": _tries(before) + 1}
        entry["cause"] = cause or before.get("cause", "")
        if state_of(outcome) == FAILED:
            entry["failing_since"] = before.get("failing_since", at)
        values["checks"][name] = entry


def save_answer(quiz: str, number: int, choice: str, right: bool) -> None:
    """Store the answer to a question (numbered from 1) of a quiz; the latest one counts."""
    with changing() as values:
        answer = {"choice": choice, "right": right, "answered_at": store.now()}
        values["answers"].setdefault(quiz, {})[str(number)] = answer


def joined() -> dict[str, Any]:
    """Return the class that was joined, or {}.

    Its "folder", the "file" there, and a raised "hand"; the uid of its "owner", because anyone may
    create a folder of the same name when that one is gone.
    """
    state = read_dict(state_path())
    is_valid = isinstance(state.get("folder"), str) and FILE_NAME.fullmatch(str(state.get("file")))
    return state if is_valid else {}


def send() -> None:
    """Send the progress if a class was joined; print a line if it can't be sent.

    A check must not fail because of it, so this raises nothing.
    """
    if not (state := joined()):
        return
    try:
        with alone():
            if not (state := joined()):  # left in the meantime
                return
            if _has_ended(Path(state["folder"])):
                state_path().unlink()
                print(f"the class {state['folder']} has ended: nothing is sent any more")
            else:
                write_file(state)
    except Exception as error:
        reason = getattr(error, "strerror", None) or error
        print(f"your progress was not sent to {state['folder']}: {reason}", file=sys.stderr)


def alone() -> FileLock:
    """Return a lock against the user's other processes: the file of the later change remains.

    It is in the learner's folder. Whoever changes what was joined, or writes the file, holds it:
    otherwise a check could send the file again that `leave` has just deleted.
    """
    return FileLock(store.path().with_name(".class.lock"), timeout=2, mode=0o600, is_singleton=True)


def _has_ended(folder: Path) -> bool:
    """Return whether `course class end` has removed the drop box; a lost disk has no folder."""
    return folder.is_dir() and not (folder / DROP).exists()


def message(state: dict[str, Any]) -> dict[str, Any]:
    """Return what is sent, with the hand that `state` has."""
    from course.checks import discovery

    stored = store.read()
    known = {name for lab in discovery.labs() for name in lab.all_checks}
    quizzes = {lab.name for lab in discovery.labs()}
    return {
        "schema": SCHEMA,
        "sent_at": with_zone(store.now()),
        "hand": state.get("hand"),
        "todos": {name: word for name, word in _todo_states().items() if word != "open"},
        "checks": {name: _check(x) for name, x in stored["checks"].items() if name in known},
        "quizzes": {name: _counts(x) for name, x in stored["answers"].items() if name in quizzes},
        "predictions": {
            key: _prediction(entry)
            for key, entry in stored["predictions"].items()
            if PREDICTION_KEY.fullmatch(key)
        },
    }


def _todo_states() -> dict[str, str]:
    """Return the state of each TODO; those of a script that has not changed, from a cache.

    Parsing all scripts takes 0.1 s, for which no check should wait.
    """
    from course.checks import exercises

    path = store.path().with_name(".todo-states.json")
    before, now = read_dict(path), {}
    for solution in sorted(exercises.SOLUTIONS.glob("*.py")):
        name = solution.name
        key = exercises.digest(solution.read_text() + exercises.read(exercises.EXERCISES / name))
        now[name] = before.get(name)
        if not now[name] or now[name]["texts"] != key:
            states = {row["todo"]: row["state"] for row in exercises.states(name)}
            now[name] = {"texts": key, "states": states}
    if now != before and path.parent.is_dir():
        with complete_file(path, mode=0o600, sync=False) as file:
            file.write(json.dumps(now).encode())
    return {todo: state for entry in now.values() for todo, state in entry["states"].items()}


def _check(outcome: dict[str, Any]) -> dict[str, Any]:
    times = {name: outcome[name] for name in ("checked_at", "failing_since") if name in outcome}
    entry = {"state": state_of(outcome), "tries": _tries(outcome)}
    entry |= {name: with_zone(at) for name, at in times.items()}
    return entry | ({"cause": outcome["cause"]} if outcome.get("cause") else {})


def _tries(outcome: dict[str, Any]) -> int:
    """Return how often a check was tried; progress of older versions has no number."""
    return outcome.get("tries", int(bool(outcome)))


def _counts(answers: dict[str, Any]) -> dict[str, int]:
    right = sum(bool(answer["right"]) for answer in answers.values())
    return {"answered": len(answers), "right": right}


def _prediction(entry: dict[str, Any]) -> dict[str, Any]:
    values = {name: entry[name] for name in ("value", "measured") if name in entry}
    # JSON has no NaN, which a loss that was measured may be.
    finite = {n: x for n, x in values.items() if isinstance(x, str) or math.isfinite(x)}
    return {n: x[:CHOICE_CHARACTERS] if isinstance(x, str) else x for n, x in finite.items()}


def with_zone(at: str) -> str:
    """Return a time of the store with its time zone: the reader's machine may have another."""
    return datetime.fromisoformat(at).astimezone().isoformat(timespec="seconds")


def state_path() -> Path:
    """Return the path of the state that `joined` reads."""
    return store.path().with_name("class.json")


def save_state(state: dict[str, Any]) -> None:
    """Store which class was joined, or a raised hand."""
    write_atomically(state_path(), json.dumps(state, indent=1) + "\n", mode=0o600)


def write_file(state: dict[str, Any]) -> Path:
    """Write the file; return its path. Raises ValueError or OSError if it is unsafe."""
    folder = Path(state["folder"])
    with alone():
        check_drop_box(folder)
        if (owner := folder.stat().st_uid) != state.get("owner", owner):
            raise ValueError(f"it belongs to {user_name(owner)} now. To stop: course class leave")
        path = folder / DROP / state["file"]
        draft = path.with_name(f".{path.name}")
        draft.unlink(missing_ok=True)  # of a process that was killed
        try:
            handle = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o640)
            with open(handle, "wb") as file:
                os.fchmod(handle, 0o640)  # whatever the umask is
                file.write(_encoded(message(state)))
            draft.replace(path)
        except BaseException:
            draft.unlink(missing_ok=True)
            raise
        return path


def _encoded(values: dict[str, Any]) -> bytes:
    """Return a message as JSON of at most LIMIT_BYTES; causes that matter least are left out."""
    order = sorted(values["checks"].values(), key=lambda x: (x["state"] != PASSED, x["checked_at"]))
    texts = [entry for entry in order if "cause" in entry]
    data = json.dumps(values, separators=(",", ":")).encode()
    while len(data) > LIMIT_BYTES and texts:
        del texts.pop(0)["cause"]
        data = json.dumps(values, separators=(",", ":")).encode()
    if len(data) > LIMIT_BYTES:
        raise ValueError(f"it has {len(data):,} bytes: expected at most {LIMIT_BYTES:,}")
    return data


def check_drop_box(folder: Path) -> None:
    """Raise ValueError unless classmates can neither list the drop box nor read or replace files.

    Its owner and root may list it, so for them less is checked.
    """
    drop, box, above = folder / DROP, _status(folder / DROP), folder.stat()
    mine, names = {os.getgid(), *os.getgroups()}, [user_name(x.st_uid) for x in (box, above)]
    is_owner, has_list = os.getuid() in (0, box.st_uid), has_access_list(drop)
    is_loose = above.st_mode & stat.S_IWOTH and not above.st_mode & stat.S_ISVTX
    is_sticky, gives_group = box.st_mode & stat.S_ISVTX, box.st_mode & stat.S_ISGID
    problems = {
        f"belongs to {names[0]}, but the class folder to {names[1]}": box.st_uid != above.st_uid,
        "is in a folder in which anyone can replace it": is_loose,
        "has no sticky bit, so classmates could replace your file": not is_sticky,
        "has no setgid bit, so new files don't get its group": not (gives_group or has_list),
        "can be listed by anyone": box.st_mode & stat.S_IROTH,
        "can be listed by you, and so by classmates": not is_owner and os.access(drop, os.R_OK),
        "has a group with learners: you are in it": not (is_owner or has_list)
        and box.st_gid in mine,
        "is not writable for you": not os.access(drop, os.W_OK | os.X_OK),
    }
    for problem, is_found in problems.items():
        if is_found:
            raise ValueError(f"{drop} {problem}. Ask {names[1]} to run course class init again")


def has_access_list(drop: Path) -> bool:
    """Return whether a default access list (ACL) hides new files in a folder from its group."""
    return (ACL_OWNING_GROUP, 0) in {entry[:2] for entry in access_list(drop, "default")}


def _status(drop: Path) -> os.stat_result:
    try:
        status = drop.lstat()
    except FileNotFoundError:
        raise ValueError(f"{drop.parent} has no drop box: is it the class folder?") from None
    if not stat.S_ISDIR(status.st_mode):
        raise ValueError(f"{drop} is not a folder: is {drop.parent} the class folder?")
    return status
