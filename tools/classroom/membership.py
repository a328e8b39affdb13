"""Join and leave a class, and raise a hand in it: the learner's side."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from course.checks import store
from course.checks.shared_progress import (
    DROP,
    alone,
    joined,
    save_state,
    state_path,
    with_zone,
    write_file,
)
from course.checks.store import FAILED, state_of
from course.runs.run import runs_root
from course.runs.shared_files import one_line, user_name
from tools.classroom import VARIABLE

QUESTION_CHARACTERS = 300


def find_class(folder: str | Path = "") -> Path:
    """Return the class's folder: the argument, else COURSE_CLASS.

    Raises:
        ValueError: there is neither, or no such folder.
    """
    place = folder or os.environ.get(VARIABLE)
    if not place:
        raise ValueError(
            f"which class? Give its folder, or set {VARIABLE}: your instructor's start.sh does that"
        )
    path = Path(place).expanduser().resolve()
    if not path.is_dir():
        raise ValueError(f"{place}: there is no such folder, so no class")
    return path


def join(folder: Path) -> Path:
    """Join a class and send the first file; return its path.

    Raises:
        ValueError: a different class was joined, or classmates could read or replace the file.
        OSError: the file can't be written.
    """
    runs_root().mkdir(parents=True, exist_ok=True)
    with alone():
        state = joined()
        if state and Path(state["folder"]) != folder:
            raise ValueError(
                f"you are in the class {state['folder']}: first run course class leave"
            )
        name = f"{user_name(os.getuid())}-{secrets.token_hex(8)}.json"
        state = state or {"folder": str(folder), "file": name, "owner": folder.stat().st_uid}
        path = write_file(state)
        save_state(state)
        return path


def leave() -> str:
    """Leave the class, and delete the file there; return the class's folder.

    Raises:
        ValueError: no class was joined.
        OSError: the file is still there; but no further one will be sent. TimeoutError: nothing
            was done, because a check is sending right now.
    """
    if not (state := joined()):
        raise ValueError("you are in no class")
    with alone():
        state_path().unlink(missing_ok=True)
        (Path(state["folder"]) / DROP / state["file"]).unlink(missing_ok=True)
    return state["folder"]


def raise_hand(question: str) -> None:
    """Send a question, with the check that failed last; "" lowers the hand.

    Raises:
        ValueError: no class was joined, or the question is too long.
        OSError: it can't be sent.
    """
    if not joined():
        raise ValueError(
            "you are in no class, so no one would see it. Join the one of your instructor with: "
            "course class join FOLDER"
        )
    text = one_line(question).strip()
    if len(text) > QUESTION_CHARACTERS:
        raise ValueError(
            f"the question has {len(text)} characters: expected at most {QUESTION_CHARACTERS}"
        )
    checks = store.read()["checks"].items()
    failing = [(x.get("checked_at", ""), n) for n, x in checks if state_of(x) == FAILED]
    check = max(failing)[1] if failing else ""
    hand = {"text": text, "check": check, "at": with_zone(store.now())} if text else None
    with alone():
        state = joined() | {"hand": hand}
        save_state(state)
        write_file(state)
