"""Batch scripts on this machine, for `course.idr_pytools` where there is no Slurm.

What a notebook does with them stands here: submit, look, cancel. `course.idr_pytools.runner`
runs them.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import psutil
from filelock import FileLock

from course.jobs.processes import alive, identity
from course.runs.files import write_atomically
from course.text import clock

JOBS = Path("slurm") / ".local"  # in the folder that was submitted from, as the logs
LOGS = Path("slurm") / "log"
JOB_VARIABLE = "COURSE_LOCAL_JOB"  # set for every process that a job's script starts: its folder
OPEN = ("PENDING", "RUNNING")
NODE_GPUS = 8  # so many processes may share a few cores: notebooks ask for a node of a cluster
# Neither the folder that one works in nor a module's PYTHONPATH may stand before the course.
RUNNER = (sys.executable, "-EP", "-m", "course.idr_pytools.runner")
POLL_S = 0.1
GRACE_S = 5.0  # between SIGTERM and SIGKILL


class Row(NamedTuple):
    """A line of the queue, in squeue's words."""

    job_id: str
    name: str
    state: str
    time: str
    nodes: str
    reason: str


@dataclass(frozen=True)
class LocalJob:
    """A job on this machine. Everything is read from its folder, so any process may hold it."""

    folder: Path

    @property
    def job_id(self) -> str:
        return self.folder.name

    @property
    def asked(self) -> dict[str, Any]:
        """What `submit` was given, and the path of the logs without .out and .err."""
        return self._read("job.json")

    @property
    def state(self) -> str:
        """PENDING, RUNNING, or how it ended: COMPLETED, FAILED, TIMEOUT, CANCELLED."""
        ended, started = self._read("ended.json"), self._read("started.json")
        return ended["state"] if ended else "RUNNING" if started else "PENDING"

    def is_over(self) -> bool:
        """Has it ended? If its runner is gone without a word it failed, and that is noted."""
        if self.state in OPEN and not self._runner() and self.state in OPEN:
            self.end_processes(0)
            cancelled = self._read("cancel.json")
            self.note("ended.json", state="CANCELLED" if cancelled else "FAILED")
        return self.state not in OPEN

    def note(self, name: str, /, **values: Any) -> None:
        """Write a file of its folder, with the time."""
        write_atomically(self.folder / name, json.dumps({"at": time.time(), **values}, default=int))

    def end_processes(self, grace_s: float) -> None:
        """End what its script started, with so many seconds for each to do so by itself."""
        deadline = time.monotonic() + grace_s
        for process in self._processes() if grace_s else []:
            _signal(process, signal.SIGTERM)
        while (left := self._processes()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        for process in left:
            _signal(process, signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Tell its runner to end it."""
        runner = self._runner()
        if runner and not self._read("runner.json").get("submitting"):
            _signal(runner, signal.SIGTERM)

    def row(self, ahead: int) -> Row:
        """Its line of the queue, where so many jobs of this folder come before it."""
        began = self._read("started.json").get("at")
        reason = "None" if began else "Priority" if ahead else "Resources"
        passed = clock(time.time() - began) if began else "0:00"
        return Row(self.job_id, self.asked.get("name", ""), self.state, passed, "1", reason)

    def _runner(self) -> psutil.Process | None:
        return alive(self._read("runner.json").get("identity", (0, 0)))

    def _processes(self) -> list[psutil.Process]:
        return [process for process in psutil.process_iter() if self._started(process)]

    def _started(self, process: psutil.Process) -> bool:
        try:
            return process.environ().get(JOB_VARIABLE) == str(self.folder)
        except psutil.Error:  # another user's, or it ended meanwhile
            return False

    def _read(self, name: str) -> dict[str, Any]:
        try:
            return json.loads((self.folder / name).read_text())
        except (OSError, ValueError):
            return {}


def submit(text: str, log: str, **asked: Any) -> str:
    """Start a job that runs the script `text` when its turn has come. Returns its id at once.

    Args:
        log: path of its logs without .out and .err; %j in it becomes the id.
        asked: name, gpus, tasks, cpus (of each task) and limit_s (seconds).
    """
    JOBS.mkdir(parents=True, exist_ok=True)
    with FileLock(JOBS / ".lock"):
        job = LocalJob(JOBS.resolve() / str(_last_id() + 1))
        job.folder.mkdir()
        job.note("runner.json", identity=identity(os.getpid()), submitting=True)
    try:
        path = os.path.abspath(log.replace("%j", job.job_id))
        job.note("job.json", **asked, devices=devices(), log=path)
        (job.folder / "script.sh").write_text(text)
        # A session of its own: interrupting a notebook signals the whole group of its kernel.
        runner = subprocess.Popen(
            [*RUNNER, "run", str(job.folder)],
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        job.note("runner.json", identity=identity(runner.pid))
    except BaseException:
        job.note("ended.json", state="FAILED")  # or the next would wait for it
        raise
    return job.job_id


def queue(name: str | None = None) -> list[Row]:
    """The jobs of the current folder that wait or run, of this name (or of several: a,b)."""
    waiting = [job for job in all_jobs(JOBS.resolve()) if not job.is_over()]
    rows = [job.row(ahead) for ahead, job in enumerate(waiting)]
    return [row for row in rows if not name or row.name in name.split(",")]


def cancel(job_id: str) -> None:
    """End a job of the current folder, with all that it started; one that is over is left alone.

    Raises:
        ValueError: there is none; the message lists those that wait or run.
    """
    found = {job.job_id: job for job in all_jobs(JOBS.resolve())}
    if job_id not in found:
        known = ", ".join(row.job_id for row in queue()) or "none"
        raise ValueError(f"no job {job_id!r} in {JOBS.resolve()}; those that wait or run: {known}")
    job, deadline = found[job_id], time.monotonic() + 2 * GRACE_S
    job.note("cancel.json")  # should its runner end before it can say so itself
    while not job.is_over() and time.monotonic() < deadline:
        job.ask_to_end()
        time.sleep(POLL_S)


def all_jobs(folder: Path) -> list[LocalJob]:
    """Every job in such a folder, in the order in which they were submitted."""
    # One without a runner, or its submitter in that place, is just being made.
    made = [path.parent for path in folder.glob("*/runner.json")]
    return [LocalJob(path) for path in sorted(made, key=lambda path: int(path.name))]


def check_gpus(gpus: int) -> None:
    """Refuse more GPUs than this machine has; where it has none, more processes than a node's.

    Raises:
        ValueError: with the numbers that are valid.
    """
    have, cores = devices(), os.cpu_count() or 1
    most = have or max(cores, NODE_GPUS)
    if not 1 <= gpus <= most:
        what = f"{have} GPUs" if have else f"no GPU and {cores} cores"
        raise ValueError(f"n_gpu={gpus}: this machine has {what}: choose 1 to {most}")


def devices() -> int:
    """How many GPUs PyTorch sees on this machine."""
    import torch

    return torch.accelerator.device_count() if torch.accelerator.is_available() else 0


def _last_id() -> int:
    """The highest id in use; also by logs, which a Slurm may have given earlier."""
    logs = (re.match(r"[^@]*@JZ_(\d+)_", path.name) for path in LOGS.glob("*"))
    logged = [int(found[1]) for found in logs if found]
    return max([*logged, *(int(path.name) for path in JOBS.glob("[0-9]*"))], default=0)


def _signal(process: psutil.Process, number: int) -> None:
    try:
        process.send_signal(number)
    except psutil.Error:
        pass
