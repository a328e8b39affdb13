"""This machine as a place for jobs: submitit's local executor, and what is left of a job."""

from __future__ import annotations

import getpass
import shlex
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from course.jobs.sites import Site
from course.runs import logs
from course.runs.run import FOLDER_VARIABLE, GROUP, Run


def submit(folder: Path, request: dict[str, Any], _site: Site) -> dict[str, Any]:
    """Start the job of a run's folder on this machine: its job_id, and its controller process."""
    from course.jobs.executor import DetachedExecutor
    from course.jobs.supervise import supervise

    take_ticket(folder)
    executor = DetachedExecutor(folder / "logs", {FOLDER_VARIABLE: _mark(Run(folder))})
    # The supervisor keeps the time limit, from the moment the run's turn has come.
    executor.update_parameters(tasks_per_node=request["gpus"], timeout_min=7 * 24 * 60)
    job = executor.submit(supervise, str(folder))
    return {"job_id": job.job_id, "controller": executor.controller}


def batch_script(folder: Path, request: dict[str, Any], _site: Site) -> str:
    """What stands in for a batch script on this machine: the command of each process."""
    return (
        f"# No scheduler here: {request['gpus']} process(es), in a session of their own\n"
        f"export {FOLDER_VARIABLE}={shlex.quote(str(folder))}\n"
        f"{shlex.quote(sys.executable)} -u -m submitit.core._submit "
        f"{shlex.quote(str(folder / 'logs'))}\n"
    )


def take_ticket(folder: Path) -> None:
    """Put a run at the end of this machine's queue. The caller holds the launch lock."""
    queue = folder.parent / ".queue"
    queue.mkdir(exist_ok=True)
    (queue / f"{time.time_ns()}@{folder.name}").touch()


def _mark(run: Run) -> str:
    """What tells the processes of a run's job apart from all others."""
    return str(run.job.folder) + GROUP * (len(run.together) > 1)


def is_first(run: Run) -> bool:
    """Is it this run's turn? Tickets of runs that are over, or gone, are thrown away."""
    for ticket in sorted((run.folder.parent / ".queue").iterdir()):
        other = Run(run.folder.with_name(ticket.name.partition("@")[2]))
        if other.name == run.name:
            return True
        if is_alive(other):  # also with its record written: it may still save a trace, say
            return False
        for each in other.together:  # or it would compute beside the next run
            kill_left(each)
        ticket.unlink(missing_ok=True)
    return True


def is_alive(run: Run) -> bool:
    """Are the processes of this run's job there, or about to be?"""
    asked, started = run.launched, run.started
    if started:
        return alive(started["supervisor"]) is not None
    if "controller" in asked:
        return alive(asked["controller"]) is not None
    return run.is_being_submitted


def ending(run: Run) -> tuple[str, str]:
    """How a run ended whose processes are gone without a record: status and error."""
    kill_left(run)
    said = logs.text(run, err=True, lines=20) or logs.text(run.job, err=True, lines=20)
    last_words = said or "it printed no error"
    error = f"the job ended without a record; the end of its standard error:\n{last_words}"
    return "lost", error


def call_off(_run: Run) -> None:
    """Nobody is to be asked here before a run is ended."""


def machine_lock() -> FileLock:
    """Who holds it computes on this machine: two at once would spoil both times."""
    return FileLock(Path(tempfile.gettempdir()) / f"make-training-fast-{getpass.getuser()}.lock")


def stop(run: Run) -> None:
    """End a run's processes: ten seconds for the supervisor to do so by itself, then at once."""
    deadline = time.monotonic() + 10
    while next(_processes(run), None) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_left(run)


def kill_left(run: Run) -> None:
    """End what is left of a run's job: every process that was started for its folder."""
    found = [*_processes(run)]
    for process in found:
        with suppress(psutil.Error):  # it ended meanwhile
            process.kill()
    psutil.wait_procs(found, timeout=2)  # the kernel takes a moment, or longer for much memory


def _processes(run: Run) -> Iterator[psutil.Process]:
    """What runs for this run; what runs for its group too, where the others are over."""
    marks = {str(run.folder)}
    if all(each.record for each in run.together if each != run):
        marks.add(_mark(run))
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # another user's, or it ended meanwhile
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(FOLDER_VARIABLE) in marks:
                yield process


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


def tell(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """What is known of runs that wait or compute here: state, reason, elapsed_s, nodes, by name.

    A run whose processes are gone is left out.
    """
    told = {}
    for run in runs:
        started = run.started
        if not is_alive(run):
            continue
        state, reason, elapsed_s = "pending", _waits_for(run), 0
        if started:
            began = datetime.fromisoformat(started["started_at"])
            elapsed_s = max(0, round((datetime.now() - began).total_seconds()))
            state, reason = "running", f"on {started['host']}"
        told[run.name] = {"state": state, "reason": reason, "elapsed_s": elapsed_s, "nodes": 1}
    return told


def _waits_for(run: Run) -> str:
    """Whose turn it is, since one job at a time computes on this machine."""
    for ticket in sorted((run.job.folder.parent / ".queue").glob("*@*")):
        other = Run(run.job.folder.with_name(ticket.name.partition("@")[2]))
        if other == run.job:
            break
        if is_alive(other):
            does = "computes" if other.started else "is before it"
            return f"one job at a time: {other.name} {does}"
    return "it is next: it starts, or a job of another runs folder computes"
