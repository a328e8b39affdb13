"""Which processes of this machine belong to a run, and ending them."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

import psutil

from course.runs.run import FOLDER_VARIABLE, GROUP, Run

COMMAND_VARIABLE = "COURSE_COMMAND_FOLDER"  # set for every process that a job's command starts
TASK = "course.jobs.supervise"  # the module that the processes of a job run once it has its turn
GRACE_S = 5.0  # between SIGTERM and SIGKILL
LOOKS = 5  # for what is left of a job, until none is found
POLL_S = 0.1  # between two looks at what is waited for
# Variables of the Slurm step, submitit job or torchrun that this process may be part of. They would
# pin a new job's tasks to the outer step's cores, or send its ranks to the outer ranks' port.
OUTER_JOB = re.compile(
    r"(SLURM|SRUN_|SBATCH_(CPU|MEM)_BIND|PMI|SUBMITIT_|TORCHELASTIC_|MASTER_(ADDR|PORT)$)"
    r"|((LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|ROLE_NAME)$"
)
# Which Slurm to use, and who the user is there: settings of the user or site, not of a job.
SLURM_ACCESS = ("SLURM_CONF", "SLURM_CONF_SERVER", "SLURM_CLUSTERS", "SLURM_JWT")


def usable_cores() -> list[int]:
    """The cores that this process may use, by number: a job may have only some of a node's."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return [*range(os.cpu_count() or 1)]


def job_environment() -> dict[str, str]:
    """This process's environment for a new job: without the variables of an outer job.

    SBATCH_* variables remain, apart from the bindings that sbatch itself sets: users set defaults
    in them, such as SBATCH_ACCOUNT, and jobs do not.
    """
    return {
        name: value
        for name, value in os.environ.items()
        if name in SLURM_ACCESS or not OUTER_JOB.match(name)
    }


def loopback() -> str:
    """The network interface that only this machine's processes reach, for GLOO_SOCKET_IFNAME."""
    return "lo0" if sys.platform == "darwin" else "lo"


def mark(run: Run) -> str:
    """What tells the processes of a run's job apart from all others."""
    return str(run.job.folder) + GROUP * (len(run.together) > 1)


def is_alive(run: Run) -> bool:
    """Are the processes of this run's job there, or about to be?"""
    asked, started = run.launched, run.started
    if started:
        return alive(started["supervisor"]) is not None
    if "controller" in asked:
        return alive(asked["controller"]) is not None
    return run.is_being_submitted


def kill_left(*runs: Run) -> None:
    """End what is left of the runs' jobs: every process that was started for their folders."""
    for _ in range(LOOKS):  # one may have started another since it was looked for
        if not (found := [*of_runs(runs)]):
            return
        for process in found:
            with suppress(psutil.Error):  # it ended meanwhile
                process.kill()
        psutil.wait_procs(found, timeout=2)  # the kernel takes a moment, or longer for much memory


def end_command(run: Run) -> None:
    """End all that the command of a job started, with GRACE_S to do so by itself."""
    for signalled in (psutil.Process.terminate, psutil.Process.kill):
        for process in (left := [*_marked([COMMAND_VARIABLE], {str(run.folder)})]):
            with suppress(psutil.Error):  # it ended meanwhile
                signalled(process)
        deadline = time.monotonic() + GRACE_S
        while left and time.monotonic() < deadline:
            time.sleep(POLL_S)
            left = [*_marked([COMMAND_VARIABLE], {str(run.folder)})]


def of_runs(runs: Iterable[Run]) -> Iterator[psutil.Process]:
    """Processes of these runs; those of a group too, where its other members are over."""
    marks = set()
    for run in runs:
        marks.add(str(run.folder))
        if is_last_of_group(run):
            marks.add(mark(run))
    if marks:
        yield from _marked([FOLDER_VARIABLE, COMMAND_VARIABLE], marks)


def is_last_of_group(run: Run) -> bool:
    """Are all other runs of its job over?"""
    return all(each.record for each in run.together if each != run)


def _marked(variables: Sequence[str], marks: set[str]) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # another user's, or it ended meanwhile
            environment = process.environ()  # empty if it is a zombie
            if any(environment.get(variable) in marks for variable in variables):
                yield process


def neighbours() -> list[str]:
    """The names of other users who compute a job of this course on this machine now."""
    names = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # it ended meanwhile, or is hidden
            if TASK in process.cmdline()[:5] and process.uids().real != os.getuid():
                names.add(process.username())
    return sorted(names)


def alive(known: Sequence[float]) -> psutil.Process | None:
    """The process of this identity; None where it has ended."""
    try:
        process = psutil.Process(int(known[0]))
        same = abs(process.create_time() - known[1]) < 1
        return process if same and process.status() != psutil.STATUS_ZOMBIE else None
    except psutil.Error:
        return None


def identity(pid: int) -> list[float]:
    """A process as [pid, time of creation]: a pid alone is soon given to another process."""
    return [pid, psutil.Process(pid).create_time()]
