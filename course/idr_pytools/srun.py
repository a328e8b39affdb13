"""What `srun` is in a batch script that runs without Slurm: it starts the job's tasks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

from course.jobs.processes import POLL_S

GRACE_S = 2.5  # between SIGTERM and SIGKILL


def srun(command: list[str]) -> int:
    """Start the command on every task and wait for them; one that fails ends the others.

    Returns:
        The exit code for the script: 0, or that of the task that failed first.
    """
    if not command or command[0].startswith("-"):
        print(f"srun: it takes a command and no options here: {command}", file=sys.stderr)
        return 2
    ending, tasks = _asked_to_end(), []
    try:
        for rank in range(int(os.environ["SLURM_NTASKS"])):
            env = os.environ | {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank)}
            tasks.append(subprocess.Popen(command, env=env, start_new_session=True))
        while None in [task.poll() for task in tasks] and not ending.is_set():
            if any(task.returncode for task in tasks):
                break
            ending.wait(POLL_S)
        return _verdict(tasks, ending)
    except OSError as error:
        print(f"srun: cannot start {command[0]!r}: {error.strerror}", file=sys.stderr)
        return 127
    finally:
        _end_tasks(tasks)


def _verdict(tasks: list[subprocess.Popen], ending: threading.Event) -> int:
    for rank, task in enumerate(tasks):
        if code := task.returncode:
            told = f"exit code {code}" if code > 0 else signal.Signals(-code).name
            others = ": the others are ended" if len(tasks) > 1 else ""
            print(f"srun: task {rank} failed with {told}{others}", file=sys.stderr)
            return code if code > 0 else 128 - code
    return 128 + signal.SIGTERM if ending.is_set() else 0


def _end_tasks(tasks: list[subprocess.Popen]) -> None:
    """End the tasks that still run, each with what it started."""
    deadline = time.monotonic() + GRACE_S
    for number in (signal.SIGTERM, signal.SIGKILL):
        for task in tasks:
            if task.poll() is None:
                os.killpg(task.pid, number)
        while None in [task.poll() for task in tasks] and time.monotonic() < deadline:
            time.sleep(POLL_S)
    for task in tasks:
        task.wait()


def _asked_to_end() -> threading.Event:
    """Set by SIGTERM, which so cannot fall between the start of a process and its being known."""
    ending = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: ending.set())
    return ending


if __name__ == "__main__":
    sys.exit(srun(sys.argv[1:]))
