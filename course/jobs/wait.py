"""The first process of a job on this machine: `wait.py FOLDER TASKS TICKET LOCK`.

It waits for the job's turn, then starts the tasks and waits until they end.

A job holds a lock on its ticket as long as it lives, so waiting means: sleep until the lock on the
ticket before one's own is free. That takes no CPU time. Up to then the job is only this small
process, so this file imports nothing of the course.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys

TYPE_CHECKING = False  # `typing` takes a while to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from subprocess import Popen
    from typing import Any

    from course.jobs.warm.forks import Forked


def open_if_held(ticket: str) -> int | None:
    """Open a ticket whose job lives; None if that job is over."""
    try:
        handle = os.open(ticket, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return handle
    os.close(handle)
    return None


def tickets(folder: str) -> list[str]:
    """The paths of all tickets, the oldest first."""
    return [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.isdigit()]


def wait_for_turn(ticket: str, machine_lock: int | None) -> None:
    """Return when no earlier job lives, and no other user's job where all users share one turn."""
    while earlier := [each for each in tickets(os.path.dirname(ticket)) if each < ticket]:
        handles = (open_if_held(each) for each in reversed(earlier))
        handle = next((each for each in handles if each is not None), None)
        if handle is None:
            break
        fcntl.flock(handle, fcntl.LOCK_SH)
        os.close(handle)
    if machine_lock is not None:  # it stays locked until the last process that has it open ends
        fcntl.flock(machine_lock, fcntl.LOCK_EX)


def run_tasks(count: int, start: Callable[[int], Popen | Forked]) -> None:
    """Start the tasks of the job, pass SIGTERM on to them, and return when all have ended."""
    tasks = []

    def pass_on(number: int, _: Any) -> None:
        for task in tasks:
            task.send_signal(number)

    signal.signal(signal.SIGTERM, pass_on)
    for rank in range(count):
        tasks.append(start(rank))
    for task in tasks:
        task.wait()


def task_command(folder: str, rank: int, count: int, job_id: str) -> list[str]:
    """The command of one of the job's tasks."""
    module = [sys.executable, "-uP", "-m", "course.jobs.supervise"]
    return [*module, folder, str(rank), str(count), job_id]


def log(folder: str, rank: int, suffix: str) -> str:
    """The path of a task's standard output (suffix "out") or error ("err")."""
    return os.path.join(folder, "logs", f"{os.getpid()}_{rank}_log.{suffix}")


def _start(folder: str, rank: int, count: int) -> Popen:
    from subprocess import Popen  # only here: it takes longer than all the rest

    with open(log(folder, rank, "out"), "ab") as out, open(log(folder, rank, "err"), "ab") as err:
        command = task_command(folder, rank, count, str(os.getpid()))
        return Popen(command, stdout=out, stderr=err)


def main() -> None:
    """Wait for the turn of a job, and run it."""
    _, folder, count, ticket, machine_lock = sys.argv
    wait_for_turn(ticket, int(machine_lock) if machine_lock else None)
    run_tasks(int(count), lambda rank: _start(folder, rank, int(count)))


if __name__ == "__main__":
    main()
