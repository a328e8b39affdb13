"""Find and kill the processes of jobs on this machine, and set up their environment."""

from __future__ import annotations

import os
import re
import sys
from contextlib import suppress

import psutil

from course.runs.run import Run

POLL_S = 0.1  # between two checks of what is waited for
# Variables of the Slurm step or torchrun that this process may be part of: they would pin a new
# job's tasks to the outer step's cores, or send its ranks to the outer ranks' port. And defaults
# of Slurm's commands: SBATCH_PARTITION would count more than the batch script, SBATCH_EXPORT=NONE,
# which Open OnDemand sets, would empty the job's environment, and SQUEUE_PARTITION would hide jobs.
OUTER_JOB = re.compile(
    r"(SLURM|SRUN_|SBATCH_|SALLOC_|SCANCEL_|SQUEUE_|SINFO_|SACCT_|PMI|SUBMITIT_|TORCHELASTIC_)"
    r"|(MASTER_(ADDR|PORT)|(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME)$"
)
# Which Slurm to use, and who the user is there: settings of the user or site, not of a job.
SLURM_ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")
SLURM_ACCESS += ("SLURM_BOX", "SLURM_BOX_PORT")  # the cluster of `course slurm`


def job_environment() -> dict[str, str]:
    """Return this process's environment for a new job, or for one of Slurm's commands.

    Variables of an outer job are left out, and defaults of Slurm's commands: the settings of a job
    are those of its site. (`course.jobs.sites` reads the user's SBATCH_ACCOUNT.)
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
    mine = [run.started for run in runs if run.is_mine]
    leaders = dict(pair for started in mine for pair in started.get("processes", []))
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
