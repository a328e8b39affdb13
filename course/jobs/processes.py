"""Find and kill the processes of jobs on this machine, and set up their environment."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress

import psutil

from course.runs.run import Run

POLL_S = 0.1  # between two checks of what is waited for
# Variables of the Slurm step or torchrun that this process may be part of. They would pin a new
# job's tasks to the outer step's cores, or send its ranks to the outer ranks' port.
OUTER_JOB = re.compile(
    r"(SLURM|SRUN_|SBATCH_(CPU|MEM)_BIND|PMI|TORCHELASTIC_|MASTER_(ADDR|PORT)$)"
    r"|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME)$"
)
# Which Slurm to use, and who the user is there: settings of the user or site, not of a job.
SLURM_ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")


def usable_cores() -> list[int]:
    """Return the numbers of the cores that this process may use; a job may have only some."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def job_environment() -> dict[str, str]:
    """Return this process's environment for a new job, without the variables of an outer job.

    SBATCH_* variables remain, apart from the bindings that sbatch itself sets: users set defaults
    in them, such as SBATCH_ACCOUNT, and jobs do not.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in SLURM_ACCESS or not OUTER_JOB.match(name)
    }


def loopback() -> str:
    """Return the network interface inside this machine, for GLOO_SOCKET_IFNAME."""
    return "lo0" if sys.platform == "darwin" else "lo"


def of_runs(*runs: Run) -> list[psutil.Process]:
    """Return the processes of these runs on this machine.

    Each process that a supervisor starts leads a session, and what it starts belongs to that
    session. A session's number is not used again before all its processes have ended, but then it
    may be: so only processes that are younger than the run count.
    """
    leaders = dict(pair for run in runs for pair in run.started.get("processes", []))
    processes = []
    for process in psutil.process_iter() if leaders else ():
        with suppress(psutil.Error, OSError):  # it has ended, or is another user's
            since = leaders.get(os.getsid(process.pid))
            ended = process.status() == psutil.STATUS_ZOMBIE
            if since and process.create_time() > since - 2 and not ended:
                processes.append(process)
    return processes


def kill_left(*runs: Run) -> None:
    """Kill the runs' processes."""
    for _ in range(5):  # a process may have started another one meanwhile
        if not (processes := of_runs(*runs)):
            return
        for process in processes:
            with suppress(psutil.Error):  # it has ended
                process.kill()
        psutil.wait_procs(processes, timeout=2)  # the kernel frees much memory slowly


def alive(known: list[float]) -> psutil.Process | None:
    """Return the process with this identity, or None if it has ended."""
    try:
        process = psutil.Process(int(known[0]))
        same = abs(process.create_time() - known[1]) < 1
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def identity(pid: int) -> list[float]:
    """Return [pid, time of creation], because pids are reused."""
    return [pid, psutil.Process(pid).create_time()]
