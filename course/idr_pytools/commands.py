"""Batch scripts as jobs of this machine: with a turn, a limit and a place in the queue, as runs.

Such a script trains nothing that the course would know of: its folder has no config, and its
record no measurement.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime

from filelock import FileLock
from platformdirs import user_state_path

from course.jobs import launch, sites
from course.jobs.engines import engine
from course.runs import run as runs
from course.runs.files import write_atomically
from course.runs.run import Run

FIRST = 1_000_000  # of so many digits no date or count in a log's name consists


@dataclass(frozen=True)
class Command:
    """A bash script, which is to run in the current folder."""

    text: str
    variables: dict[str, str]  # for its environment
    without: list[str]  # beginnings of names: no other such variable comes from the launcher
    log: str  # the path of its logs, without .out and .err
    gpus: int
    time_min: float


def submit(name: str, command: Callable[[int], Command], *, above: int = 0) -> Run:
    """Put a command into this machine's queue, and return at once.

    Args:
        name: of the job; a number follows it.
        command: what to start, by the job's number.
        above: the number is larger than this one, and than that of any other command of this
            user.

    Raises:
        JobError: the runs folder cannot be written.
    """
    with launch.launching() as root:
        known = [run.launched.get("number", 0) for run in runs.all_jobs() if run.is_command]
        number = _claim(max([FIRST, 1 + above, *(1 + each for each in known)]))
        run = Run(root / f"{name}-{number}")
        asked = {
            "name": name,
            "number": number,
            "cwd": os.getcwd(),
            "command": ["bash", str(run.folder / runs.COMMAND)],
            "site": "local",
            "executor": "local",
            "launched_at": datetime.now().isoformat(timespec="seconds"),
            **asdict(command(number)),
        }
        run.folder.mkdir()
        try:
            _start(run, asked)
        except BaseException:
            engine("local").kill_left(run)
            shutil.rmtree(run.folder, ignore_errors=True)
            raise
    return run


def _claim(number: int) -> int:
    """Return this number, or the next that no other job of this user has.

    Scripts derive ports from it, so the first number is random: two users rarely have the same.

    Raises:
        JobError: the last number cannot be written.
    """
    place = user_state_path("make-training-fast") / "last-job-number"
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{place}.lock", timeout=60):
            last = place.read_text() if place.exists() else ""
            lowest = int(last) + 1 if last.isdecimal() else FIRST + secrets.randbelow(FIRST)
            number = max(number, lowest)
            write_atomically(place, str(number))
    except OSError as error:
        raise launch.JobError(
            f"{place}: cannot be written ({error.strerror or error}), and the next job's number "
            f"goes there. Make it writable, or set XDG_STATE_HOME to another folder"
        ) from error
    return number


def _start(run: Run, asked: dict[str, object]) -> None:
    (run.folder / runs.COMMAND).write_text(str(asked.pop("text")))
    write_atomically(run.folder / "launch.json", json.dumps(asked, indent=1))
    supervisor = asked | {"gpus": 1}  # one, whatever the script itself starts
    job = engine("local").submit(run.folder, supervisor, sites.get("local"))
    asked |= job | {"job_id": str(asked["number"])}
    write_atomically(run.folder / "launch.json", json.dumps(asked, indent=1))
