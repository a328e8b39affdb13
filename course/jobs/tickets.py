"""One job at a time computes on this machine: a ticket for each, in the order of their launch."""

from __future__ import annotations

import getpass
import tempfile
import time
from pathlib import Path

from filelock import FileLock

from course.jobs.processes import is_alive, kill_left
from course.runs.run import Run


def take_ticket(folder: Path) -> None:
    """Put a run at the end of this machine's queue. The caller holds the launch lock."""
    queue = folder.parent / ".queue"
    queue.mkdir(exist_ok=True)
    (queue / f"{time.time_ns()}@{folder.name}").touch()


def is_first(run: Run) -> bool:
    """Is it this run's turn? Tickets of runs that are over, or gone, are thrown away."""
    for ticket in sorted((run.folder.parent / ".queue").iterdir()):
        other = Run(run.folder.with_name(ticket.name.partition("@")[2]))
        if other.name == run.name:
            return True
        if is_alive(other):  # also with its record written: it may still save a trace, say
            return False
        for each in other.together:  # or it would compute beside the next run
            kill_left(each)
        ticket.unlink(missing_ok=True)
    return True


def machine_lock() -> FileLock:
    """Who holds it computes on this machine: two at once would spoil both times."""
    return FileLock(Path(tempfile.gettempdir()) / f"make-training-fast-{getpass.getuser()}.lock")


def waits_for(run: Run) -> str:
    """Whose turn it is, since one job at a time computes on this machine."""
    for ticket in sorted((run.job.folder.parent / ".queue").glob("*@*")):
        other = Run(run.job.folder.with_name(ticket.name.partition("@")[2]))
        if other == run.job:
            break
        if is_alive(other):
            does = "computes" if other.started else "is before it"
            return f"one job at a time: {other.name} {does}"
    return "it is next: it starts, or a job of another runs folder computes"
