"""Slurm as a place for jobs: submitit's executor, squeue for what is alive, sacct for how it ended.

The functions are those of `course.local`. Where `course slurm up` runs a Slurm on this machine
and no other was chosen by SLURM_CONF, it is the one that is spoken to.
"""

from __future__ import annotations

import math
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from course import cluster
from course.runs import FOLDER_VARIABLE, Run
from course.sites import Site

FRESH_S = 2.0  # squeue is asked no more often, however many runs are waited for
GRACE_MIN = 2  # Slurm's limit lies so far behind the supervisor's own
ACCOUNTED_S = 10.0  # until sacct knows that a job is over
OVER = {"CANCELLED": "cancelled", "TIMEOUT": "timeout", "DEADLINE": "timeout",
        "OUT_OF_MEMORY": "oom", "FAILED": "failed"}  # fmt: skip
ALIVE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING")
_seen: tuple[float, dict[str, str] | None] = (-math.inf, None)


def submit(folder: Path, request: dict[str, Any], site: Site) -> dict[str, Any]:
    """Submit the job of a run's folder: its job_id.

    Raises:
        ValueError: Slurm's commands are not here, or Slurm refuses; the message is Slurm's own.
    """
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError

    from course.supervise import supervise

    if not cluster.which("sbatch"):
        raise ValueError(
            f"site {site.name!r} needs Slurm's commands, and there is no sbatch here: run on a "
            f"login node, or start a Slurm on this machine by course slurm up"
        )
    nodes, tasks = site.shape(request["gpus"])
    with _speaking():
        executor = SlurmExecutor(folder / "logs", python=shlex.quote(sys.executable))
        executor.update_parameters(**_parameters(folder, request, site, nodes, tasks))
        try:
            number = executor.submit(supervise, str(folder)).job_id
        except FailedJobError as error:
            raise ValueError(f"Slurm refused the job: {_reason(error)}") from error
    _forget()
    return {"job_id": number}


def _forget() -> None:
    """Ask squeue anew the next time."""
    global _seen
    _seen = (-math.inf, None)


def _parameters(
    folder: Path, request: dict[str, Any], site: Site, nodes: int, tasks: int
) -> dict[str, Any]:
    named = {name: getattr(site, name) for name in ("partition", "account", "qos", "constraint")}
    extra = dict(line.split("=", 1) for line in site.sbatch)
    return {
        "job_name": folder.name, "nodes": nodes, "ntasks_per_node": tasks,
        "cpus_per_task": site.cpus_per_gpu, "gres": f"gpu:{tasks}",
        "time": math.ceil(site.time_min) + GRACE_MIN,
        "setup": [*site.setup, f"export {FOLDER_VARIABLE}={shlex.quote(str(folder))}"],
        "additional_parameters": extra, **{key: value for key, value in named.items() if value},
    }  # fmt: skip


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if "error:" in line]
    return " ".join(line.partition("error:")[2].strip() for line in lines) or str(error)


def is_alive(run: Run) -> bool:
    """Does the run's job wait or compute? Also where Slurm does not answer just now."""
    known = _jobs()
    if known is None:
        return True
    number = str(run.launched.get("job_id", ""))
    return known.get(number) == run.name  # ids are reused after an accident, names are not


def _jobs() -> dict[str, str] | None:
    """Names of this user's jobs that are not over, by id; None if Slurm does not answer."""
    global _seen
    if time.monotonic() - _seen[0] > FRESH_S:
        done = _run("squeue", "--noheader", "--me", "--format=%i|%j")
        lines = done.stdout.splitlines() if done and done.returncode == 0 else None
        found = None if lines is None else dict(line.split("|", 1) for line in lines)
        _seen = time.monotonic(), found
    return _seen[1]


def ending(run: Run) -> tuple[str, str]:
    """How accounting says that a run's job ended, which left no record: status and error.

    "queued" where it is alive after all: Slurm had put it back into the queue.
    """
    number, deadline = str(run.launched.get("job_id", "")), time.monotonic() + ACCOUNTED_S
    state = ""
    while time.monotonic() < deadline:
        words = ("--noheader", "-P", "-X", "-j", number, "-o", "JobName,State,ExitCode,NodeList")
        done = _run("sacct", *words)
        rows = [line.split("|") for line in done.stdout.splitlines()] if done else []
        rows = [row for row in rows if row[0] == run.name]
        state = rows[-1][1].split()[0] if rows else ""
        if state and state not in ALIVE:
            told = f"Slurm: {rows[-1][1]}, exit code {rows[-1][2]}, on {rows[-1][3]}"
            return OVER.get(state, "lost"), told
        if is_alive(run):
            return "queued", ""
        time.sleep(0.5)
    return "lost", f"Slurm does not know job {number} any more (its last word: {state or 'none'})"


def stop(run: Run) -> None:
    """End the run's job, waiting or computing."""
    if is_alive(run):
        _run("scancel", str(run.launched.get("job_id", "")))
        _forget()


def kill_left(run: Run) -> None:
    """End what is left of a run's job: Slurm itself does that for all that belongs to it."""
    stop(run)


def _run(*command: str) -> subprocess.CompletedProcess[str] | None:
    try:
        with _speaking():
            return subprocess.run(command, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None


@contextmanager
def _speaking() -> Iterator[None]:
    """Slurm's commands, and submitit which calls them, speak to this machine's own cluster."""
    added = cluster.environment()
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]
