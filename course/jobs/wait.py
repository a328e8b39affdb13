"""Wait for a job's turn on this machine, then become the job: `wait.py TICKET LOCK COMMAND …`.

A job holds a lock on its ticket as long as it lives, so waiting means: sleep until the lock on the
ticket before one's own is free. That takes no CPU time. Up to then the job is a small process,
so this file imports nothing of the course.
"""

import fcntl
import os
import sys


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


if __name__ == "__main__":
    _, own, lock, *command = sys.argv
    wait_for_turn(own, int(lock) if lock else None)
    os.execv(command[0], command)
