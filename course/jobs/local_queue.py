"""The queue of this machine: a ticket for each job of this user, in the order of launch.

One supervisor per user works through the tickets, a job at a time (`course.jobs.runner`), so a
waiting job is only a file. The supervisor holds a lock. If it is killed, the next process that
reads the queue starts another one. On a site with `shared`, a second lock makes the jobs of all
users take turns.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from course.jobs.processes import POLL_S, alive, job_environment
from course.runs.errors import JobError
from course.runs.files import read_dict, write_atomically
from course.runs.run import PROJECT, Run
from course.runs.user_folder import user_folder
from trainspeed.resources import usable_cores

# The same for all users, whatever their TMPDIR is. Others cannot remove it: these folders are
# sticky, or root's. Locking a file needs only permission to read it, so others cannot write it.
MACHINE_LOCK = Path("/run/lock" if os.path.isdir("/run/lock") else "/tmp", "make-training-fast")
RUNNER = "from course.jobs.runner import main; main()"
# Prefixes of variables for which a job needs no new supervisor: shells and imports set them.
PASSED_ON = (
    *("COURSE_", "PYTEST_", "JPY_", "PWD", "OLDPWD", "SHLVL", "TERM", "COLUMNS", "LINES", "_"),
    *("KMP_DUPLICATE_LIB_OK", "KMP_INIT_AT_FORK", "THP_MEM_ALLOC_ENABLE"),
    *("TORCHINDUCTOR_CACHE_DIR", "CUDA_MODULE_LOADING"),
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TORCH_NCCL_"),
)
_runners: list[subprocess.Popen] = []  # that this process has started


def queue_folder() -> Path:
    """Return this user's queue; each Slurm allocation on this machine has a separate one."""
    return user_folder() / f"queue{os.environ.get('SLURM_JOB_ID', '')}"


def take_ticket(folder: Path, tasks: int, *, shared: bool) -> Path:
    """Put the job of a run's folder at the end of the queue, and make sure that it is served.

    Args:
        tasks: how many ranks the job has.
        shared: whether it waits for jobs of other users, too.

    Returns:
        The ticket, whose name is the job's number.

    Raises:
        JobError: a folder or file that the queue needs cannot be used.
    """
    try:
        if shared:
            os.close(_open_machine_lock())
        queue = queue_folder()
        queue.mkdir(exist_ok=True)
        ticket = queue / str(_next_number(queue))
        job = {"folder": str(folder), "tasks": tasks, "shared": shared, "env": job_environment()}
        job["needs"] = _needs(job["env"])
        write_atomically(ticket, json.dumps(job), mode=0o600)
        start_runner(queue)
    except OSError as error:
        raise JobError(f"the queue of this machine cannot be used: {error}") from error
    return ticket


def _next_number(queue: Path) -> int:
    with (queue / "last").open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        number = int(last.read() or 0) + 1
        last.truncate(0)
        last.write(str(number))
    return number


def _needs(env: dict[str, str]) -> dict[str, Any]:
    """Return what a job's supervisor must have been started with.

    Libraries read their variables when they are imported, and modules are imported once: a changed
    environment or course needs another supervisor.
    """
    changed = max(path.stat().st_mtime_ns for path in (PROJECT / "course").rglob("*.py"))
    kept = {name: value for name, value in env.items() if not name.startswith(PASSED_ON)}
    return {
        "python": sys.executable,
        "course": [str(PROJECT), changed],
        "cores": usable_cores(),
        "env": kept,
    }


def tickets(queue: Path) -> list[Path]:
    """Return all tickets, the oldest first."""
    with suppress(FileNotFoundError):
        numbers = sorted(int(name) for name in os.listdir(queue) if name.isdigit())
        return [queue / str(number) for number in numbers]
    return []


def is_served(queue: Path) -> bool:
    """Return whether a supervisor holds the queue."""
    with suppress(FileNotFoundError), (queue / "lock").open() as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@contextmanager
def serving(queue: Path) -> Iterator[bool]:
    """Lock the queue as its supervisor; yield False if another process holds it."""
    with (queue / "lock").open("a") as lock:
        is_ours = False
        for _ in range(10):  # `is_served` holds it for a moment
            with suppress(BlockingIOError):
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                (queue / "pid").write_text(str(os.getpid()))
                is_ours = True
                break
            time.sleep(POLL_S)
        yield is_ours


def start_runner(queue: Path) -> None:
    """Start a supervisor for the first ticket, unless there is one, or nothing to do.

    It runs in a new session: interrupting a Jupyter kernel signals its whole process group.
    """
    _runners[:] = [runner for runner in _runners if runner.poll() is None]  # reaps those that ended
    first = next(iter(tickets(queue)), None)
    needs = read_dict(first).get("needs") if first and not is_served(queue) else None
    if needs is None or any(str(queue) in runner.args for runner in _runners):
        return
    if not Path(needs["python"]).exists():  # the job's environment was removed: it is lost
        first.unlink(missing_ok=True)
        return
    with (queue / "supervisor.log").open("w") as log:
        runner = subprocess.Popen(
            [needs["python"], "-P", "-c", RUNNER, str(queue), digest(needs)],
            cwd="/",  # a job's folder may hold modules that would be imported
            env=needs["env"],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
    _runners.append(runner)
    if hasattr(os, "sched_setaffinity"):
        with suppress(OSError):  # this process may use fewer cores than the one that launched
            os.sched_setaffinity(runner.pid, needs["cores"])


def digest(needs: dict[str, Any]) -> str:
    """Return a short text that is equal for equal needs."""
    return hashlib.sha256(json.dumps(needs, sort_keys=True).encode()).hexdigest()[:16]


def is_open(ticket: Path, supervisor: list[float]) -> bool:
    """Return whether a job waits or computes; start a supervisor if a waiting job has none.

    Args:
        supervisor: identity of the process that began the job; empty: the job has not begun.
    """
    if not os.path.exists(ticket):  # or it is another user's
        return False
    if ticket.parent in user_folder().glob("queue*"):  # no other, whose command is anyone's
        start_runner(ticket.parent)
    return not supervisor or alive(supervisor) is not None


@contextmanager
def machine_turn() -> Iterator[None]:
    """Hold the turn that all users of this machine share."""
    lock = _open_machine_lock()
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
    finally:
        os.close(lock)


def _open_machine_lock() -> int:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe of that name blocks no launch
    try:
        with suppress(FileNotFoundError):
            return os.open(MACHINE_LOCK, flags)
        with suppress(FileExistsError):
            lock = os.open(MACHINE_LOCK, flags | os.O_CREAT | os.O_EXCL, 0o644)
            os.fchmod(lock, 0o644)  # whatever the umask is
            return lock
        return os.open(MACHINE_LOCK, flags)  # another user has just created it
    except OSError as error:
        raise PermissionError(
            f"{MACHINE_LOCK}, the lock that all users share, cannot be opened "
            f"({error.strerror}): ask the instructor to create it again, as root: "
            f"rm -f {MACHINE_LOCK}; install -m 644 /dev/null {MACHINE_LOCK}"
        ) from error


def first_in_queue() -> Run | None:
    """Return this user's job whose turn it is: it computes, or is about to."""
    with suppress(OSError):  # another user's folder
        for ticket in tickets(queue_folder()):
            if job := read_dict(ticket):
                return Run(Path(job["folder"]))
    return None
