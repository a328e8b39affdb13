"""One job at a time computes on this machine: each has a ticket, in the order of launch.

The tickets are in a folder of this user; `wait.py` does the waiting. Where a site sets `shared`,
the jobs of all users take turns, by a lock that every user of the machine can take.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from course.jobs.errors import JobError
from course.jobs.private import user_folder
from course.jobs.processes import kill_left
from course.jobs.wait import open_if_held, tickets
from course.runs.run import Run

VARIABLE = "COURSE_TICKET"  # the path of a job's ticket, for its processes
# The same for all users, whatever their TMPDIR is. Others cannot remove it: these folders are
# sticky, or root's. To lock a file it is enough to read it, so others cannot write to it either.
MACHINE_LOCK = Path("/run/lock" if os.path.isdir("/run/lock") else "/tmp", "make-training-fast")


def take_ticket(folder: Path, *, shared: bool) -> tuple[Path, list[int]]:
    """Put the job of a run's folder at the end of this machine's queue.

    Returns:
        The ticket, and descriptors for the job's first process: the ticket, locked, and where
        all users share one turn the lock of the machine.

    Raises:
        JobError: a folder or file that the queue needs cannot be used.
    """
    try:
        handles = [_open_machine_lock()] if shared else []
        queue = user_folder() / "queue"
        queue.mkdir(exist_ok=True)
        _forget_dead_tickets(queue, folder)
        name = str(time.time_ns())
        draft = queue / f".{name}"
        handles.insert(0, os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        os.write(handles[0], os.fsencode(folder))
        fcntl.flock(handles[0], fcntl.LOCK_EX)
        draft.rename(queue / name)  # only now do others see it
    except OSError as error:
        raise JobError(f"the queue of this machine cannot be used: {error}") from error
    return queue / name, handles


def _forget_dead_tickets(queue: Path, folder: Path) -> None:
    """Remove tickets that dead jobs of this folder left: the next job would end the new one."""
    for ticket in tickets(str(queue)):
        if (handle := open_if_held(ticket)) is not None:
            os.close(handle)
        elif Path(ticket).read_bytes() == os.fsencode(folder):
            os.unlink(ticket)


def _open_machine_lock() -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe of that name holds up no launch
    try:
        with suppress(FileNotFoundError):
            return os.open(MACHINE_LOCK, flags)
        with suppress(FileExistsError):
            handle = os.open(MACHINE_LOCK, flags | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(handle, 0o644)  # whatever the umask is
            return handle
        return os.open(MACHINE_LOCK, flags)  # another user has just created it
    except OSError as error:
        raise PermissionError(
            f"{MACHINE_LOCK}, the lock that all users share, cannot be opened "
            f"({error.strerror}): ask the instructor to create it again, as root: "
            f"rm -f {MACHINE_LOCK}; install -m 644 /dev/null {MACHINE_LOCK}"
        ) from error


@contextmanager
def turn() -> Iterator[None]:
    """Hold this user's turn, in a job whose wait is over; first end what dead jobs left behind."""
    ticket = Path(os.environ[VARIABLE])
    with (ticket.parent.parent / "turn.lock").open("a") as lock:
        # It is free, unless an earlier job goes on without its first process.
        fcntl.flock(lock, fcntl.LOCK_EX)
        _end_dead_jobs(ticket)
        try:
            yield
        finally:
            ticket.unlink(missing_ok=True)


def _end_dead_jobs(own: Path) -> None:
    """End what is left of jobs before this one that did not hand back their tickets."""
    dead, alive = [], Run(Path(os.fsdecode(own.read_bytes()))).together
    for ticket in map(Path, tickets(str(own.parent))):
        if ticket < own and (handle := open_if_held(str(ticket))) is None:
            dead += Run(Path(os.fsdecode(ticket.read_bytes()))).together
            ticket.unlink(missing_ok=True)
        elif ticket < own:
            os.close(handle)
    kill_left(*(run for run in dead if run not in alive))


def first_in_queue() -> Run | None:
    """The job whose turn it is among this user's: it computes, or is about to."""
    with suppress(OSError):  # there is no queue: the jobs are another user's, say
        for ticket in tickets(str(user_folder() / "queue")):
            if (handle := open_if_held(ticket)) is not None:
                with os.fdopen(handle, "rb") as file:
                    return Run(Path(os.fsdecode(file.read())))
    return None
