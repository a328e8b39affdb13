"""Run jobs on this machine, one at a time, in the order of launch."""

from __future__ import annotations

import platform
import shlex
import sys
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from course.jobs import local_queue
from course.jobs.processes import POLL_S, kill_left, of_runs
from course.jobs.sites import Site
from course.runs.files import read_dict
from course.runs.run import FOLDER_VARIABLE, Run

STOP_S = 10.0  # for the supervisor to end cancelled runs


def submit(folder: Path, request: dict[str, Any], site: Site) -> dict[str, Any]:
    """Put the job of a run's folder into this machine's queue; return job_id and ticket."""
    ticket = local_queue.take_ticket(folder, request["gpus"], shared=site.shared)
    return {"job_id": ticket.name, "ticket": str(ticket)}


def commands(folder: Path, request: dict[str, Any], _site: Site) -> str:
    """Return what corresponds to a batch script on this machine: the command of each process."""
    count = request["gpus"]
    script = shlex.join([sys.executable, "-u", str(folder / "train.py")])
    commands = [f"RANK={rank} LOCAL_RANK={rank} {script}" for rank in range(count)]
    processes = "1 process" if count == 1 else f"{count} processes"
    variables = f"{FOLDER_VARIABLE}={shlex.quote(str(folder))} WORLD_SIZE={count}"
    lines = [f"# No scheduler here: {processes}", f"export {variables}", " &\n".join(commands)]
    return "\n".join([*lines, ""])


def is_alive(run: Run) -> bool:
    """Return whether the run's job waits or computes, or is about to."""
    if "ticket" in run.launched:
        return local_queue.is_open(Path(run.launched["ticket"]), run.started.get("supervisor", []))
    return run.is_being_submitted


def ending(run: Run) -> tuple[str, str]:
    """Return status and error of a run whose job is gone without a record."""
    kill_left(run)
    error = "the job ended without a record: its supervisor was killed, or the machine restarted"
    text = run.tail(err=True, lines=20) or run.job.tail(err=True, lines=20)
    return "lost", f"{error}. The end of its standard error:\n{text}" if text else error


def end_processes(runs: Sequence[Run]) -> None:
    """End the processes of runs that have a record: supervisors have STOP_S to do so."""
    deadline = time.monotonic() + STOP_S
    while of_runs(*runs) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    kill_left(*runs)


def queue_states(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """Return state, reason, elapsed_s and nodes of runs that wait or compute here, by name.

    A run whose job is gone is left out.
    """
    rows = {}
    living = [run for run in runs if is_alive(run)]
    for run in living:
        started = run.started
        state, reason, elapsed_s = "pending", "", 0
        if started:
            began = datetime.fromisoformat(started["started_at"])
            elapsed_s = max(0, round((datetime.now() - began).total_seconds()))
            state, reason = "running", f"on {started['host']}"
        rows[run.name] = {"state": state, "reason": reason, "elapsed_s": elapsed_s, "nodes": 1}
        may_use_gpu = run.is_command or run.config.device != "cpu"
        if not (may_use_gpu and has_gpu()):  # its `gpus` are processes
            rows[run.name]["gpus"] = 0
    _explain_waiting(rows, living)
    return rows


def _explain_waiting(rows: dict[str, dict[str, Any]], runs: Sequence[Run]) -> None:
    """Set the reason of each waiting run, such as the job that computes before it."""
    waiting = [run for run in runs if rows[run.name]["state"] == "pending"]
    first = local_queue.first_in_queue() if waiting else None
    for run in waiting:
        reason = "next in the queue"
        if first and first != run.job:
            name = first.name if first.folder.parent == run.job.folder.parent else first.folder
            reason = f"one job at a time: {name} {'computes' if first.started else 'is before it'}"
        elif read_dict(Path(run.launched["ticket"])).get("shared"):
            reason = "next in the queue: all users of this machine take turns"
        rows[run.name]["reason"] = reason


def has_gpu() -> bool:
    """Return whether this machine has a GPU by its device files; asking PyTorch takes seconds."""
    files = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA, AMD, and either inside Windows
    apple = (sys.platform, platform.machine()) == ("darwin", "arm64")
    return apple or any(next(Path("/dev").glob(pattern), None) for pattern in files)
