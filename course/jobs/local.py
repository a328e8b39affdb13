"""This machine as a place for jobs: a process for each, which waits for its turn."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from course.config import Config
from course.jobs import wait
from course.jobs.processes import (
    alive,
    identity,
    is_alive,
    is_last_of_group,
    job_environment,
    kill_left,
    mark,
    neighbours,
    of_runs,
)
from course.jobs.sites import Site
from course.jobs.tickets import VARIABLE, first_in_queue, take_ticket
from course.jobs.warm import client
from course.runs import logs
from course.runs.logs import submitted as submitted
from course.runs.run import FOLDER_VARIABLE, Run

_controllers: list[subprocess.Popen] = []  # started by this process; those that end are reaped


def answer(_config: Config, _request: dict[str, Any], _site: Site) -> None:
    """Nothing is known before a job has run."""


def submit(folder: Path, request: dict[str, Any], site: Site) -> dict[str, Any]:
    """Start the job of a run's folder on this machine: its job_id, and its first process."""
    ticket, handles = take_ticket(folder, shared=site.shared)
    try:
        (folder / "logs").mkdir(exist_ok=True)
        env = job_environment() | {FOLDER_VARIABLE: mark(Run(folder)), VARIABLE: str(ticket)}
        controller = client.start_controller(folder, request["gpus"], env, handles)
        if controller is None:
            controller = _start_controller(folder, request["gpus"], env, handles)
            client.start_server()  # for the launches that come after this one
    except BaseException:
        ticket.unlink(missing_ok=True)
        raise
    finally:
        for handle in handles:  # the job has them now
            os.close(handle)
    return {"job_id": str(int(controller[0])), "controller": controller}


def _start_controller(
    folder: Path, tasks: int, env: dict[str, str], handles: Sequence[int]
) -> list[float]:
    """Start the job's first process, in a session of its own: that process's identity.

    Interrupting or restarting a Jupyter kernel signals its whole process group.
    """
    lock = "".join(map(str, handles[1:]))
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", wait.__file__, str(folder), str(tasks), env[VARIABLE], lock],
        env=env,
        pass_fds=handles,
        start_new_session=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _controllers[:] = [each for each in _controllers if each.poll() is None]
    _controllers.append(process)
    return identity(process.pid)


def batch_script(folder: Path, request: dict[str, Any], _site: Site) -> str:
    """What stands in for a batch script on this machine: the command of each process."""
    count = request["gpus"]
    tasks = [wait.task_command(str(folder), rank, count, "job") for rank in range(count)]
    commands = " &\n".join(map(shlex.join, tasks))
    processes = "1 process" if count == 1 else f"{count} processes"
    return (
        f"# No scheduler here: {processes}, in one session\n"
        f"export {FOLDER_VARIABLE}={shlex.quote(str(folder))}\n"
        f"{commands}\n"
    )


def ending(run: Run) -> tuple[str, str]:
    """How a run ended whose processes are gone without a record: status and error."""
    kill_left(run)
    said = logs.text(run, err=True, lines=20) or logs.text(run.job, err=True, lines=20)
    last_words = said or "it printed no error"
    error = f"the job ended without a record; the end of its standard error:\n{last_words}"
    return "lost", error


def call_off(_run: Run) -> None:
    """Nobody is to be asked here before a run is ended."""


def stop(runs: Sequence[Run]) -> None:
    """End the runs' processes: ten seconds for supervisors to do so by themselves, then at once."""
    for run in runs:
        if not run.started and is_last_of_group(run):  # nobody but its first process is there
            with suppress(psutil.Error):  # it ended meanwhile
                if controller := alive(run.launched.get("controller", [0, 0])):
                    controller.terminate()
    deadline = time.monotonic() + 10
    while next(of_runs(runs), None) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_left(*runs)


def tell(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """What is known of runs that wait or compute here: state, reason, elapsed_s, nodes, by name.

    A run whose processes are gone is left out.
    """
    told = {}
    living = [run for run in runs if is_alive(run)]
    others = neighbours() if living else []
    for run in living:
        started = run.started
        state, reason, elapsed_s = "pending", "", 0
        if started:
            began = datetime.fromisoformat(started["started_at"])
            elapsed_s = max(0, round((datetime.now() - began).total_seconds()))
            state, reason = "running", f"on {started['host']}"
            if others:
                reason += f", at the same time as jobs of {', '.join(others)}: times are noisy"
        told[run.name] = {"state": state, "reason": reason, "elapsed_s": elapsed_s, "nodes": 1}
        if not _on_gpu(run):
            told[run.name]["gpus"] = 0
    _explain_waiting(told, living, others)
    return told


def _explain_waiting(
    told: dict[str, dict[str, Any]], runs: Sequence[Run], others: Sequence[str]
) -> None:
    """Say of runs that wait whose job computes before them."""
    waiting = [run for run in runs if told[run.name]["state"] == "pending"]
    first = first_in_queue() if waiting else None
    for run in waiting:
        reason = "it is next: it starts"
        if first and first != run.job:
            name = first.name if first.folder.parent == run.job.folder.parent else first.folder
            reason = f"one job at a time: {name} {'computes' if first.started else 'is before it'}"
        elif others:
            reason = f"it is next, after jobs of {', '.join(others)}, if all users take turns here"
        told[run.name]["reason"] = reason


def _on_gpu(run: Run) -> bool:
    """May the run compute on a GPU of this machine? Its `gpus` are processes, where it may not."""
    return has_gpu() and (run.is_command or run.config.device != "cpu")


def has_gpu() -> bool:
    """Is there a GPU here, as far as its device files tell? To ask PyTorch takes seconds."""
    files = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA, AMD, and either inside Windows
    apple = (sys.platform, platform.machine()) == ("darwin", "arm64")
    return apple or any(next(Path("/dev").glob(each), None) for each in files)
