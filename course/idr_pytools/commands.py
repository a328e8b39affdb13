"""Batch scripts as jobs of this machine: with a turn, a limit and a place in the queue, as runs.

Such a script trains nothing that the course would know of: its folder has no config, and its
record no measurement.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from course.jobs import launch, sites
from course.jobs.engines import engine
from course.runs import run as runs
from course.runs.files import write_atomically
from course.runs.run import Run

FIRST = 1_000_000  # of so many digits no date or count in a log's name consists
REMEMBERED = 1000  # ids of so many jobs; older ones are forgotten


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
        above: the number is larger than this one, and than that of any other command on this
            machine, whoever submitted it.

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
    """This number, or the next that nobody on this machine has: scripts derive ports from it.

    A file is made for each, in a folder where every user may make some and remove their own.
    """
    place = _shared_folder()
    files = [each for each in place.iterdir() if re.fullmatch(r"[1-9]\d{0,8}", each.name)]
    taken = [int(each.name) for each in files]
    number = max([number, *(each + 1 for each in taken)])
    while True:
        try:
            (place / str(number)).touch(exist_ok=False)
            break
        except FileExistsError:  # somebody was faster
            number += 1
    for file in files:
        with suppress(OSError):  # it is forgotten already
            own = file.lstat().st_uid == os.getuid()
            if own and int(file.name) < number - REMEMBERED:
                file.unlink()
    return number


def _shared_folder() -> Path:
    """The folder of ids, one for all users, as the temporary directory is.

    Raises:
        JobError: there is something else of its name, or not everybody may write there.
    """
    place = Path(tempfile.gettempdir()) / "make-training-fast-ids"
    with suppress(FileExistsError):
        place.mkdir()
    found = place.lstat()  # not what a link leads to
    if stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid():
        place.chmod(0o1777)
    elif not stat.S_ISDIR(found.st_mode) or stat.S_IMODE(found.st_mode) != 0o1777:
        raise launch.JobError(
            f"{place} must be a folder in which everybody may write (mode 1777), and it is not: "
            f"ask its owner to remove it, or set TMPDIR"
        )
    return place


def _start(run: Run, asked: dict[str, object]) -> None:
    (run.folder / runs.COMMAND).write_text(str(asked.pop("text")))
    write_atomically(run.folder / "launch.json", json.dumps(asked, indent=1))
    supervisor = asked | {"gpus": 1}  # one, whatever the script itself starts
    job = engine("local").submit(run.folder, supervisor, sites.get("local"))
    asked |= job | {"job_id": str(asked["number"])}
    write_atomically(run.folder / "launch.json", json.dumps(asked, indent=1))
