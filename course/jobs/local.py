"""This machine as a place for jobs: submitit's local executor, and what is left of a job."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import Any

from submitit import LocalExecutor
from submitit.local.local import LocalJob

from course.config import Config
from course.jobs.processes import identity, is_alive, job_environment, kill_left, mark, of_run
from course.jobs.sites import Site
from course.jobs.tickets import take_ticket, waits_for
from course.jobs.warm import client, task
from course.runs import logs
from course.runs.logs import submitted as submitted
from course.runs.run import FOLDER_VARIABLE, Run


def answer(_config: Config, _request: dict[str, Any], _site: Site) -> None:
    """Nothing is known before a job has run."""


def submit(folder: Path, request: dict[str, Any], _site: Site) -> dict[str, Any]:
    """Start the job of a run's folder on this machine: its job_id, and its controller process."""
    from course.jobs.supervise import supervise

    take_ticket(folder)
    executor = DetachedExecutor(folder / "logs", {FOLDER_VARIABLE: mark(Run(folder))})
    # The supervisor keeps the time limit, from the moment the run's turn has come.
    executor.update_parameters(tasks_per_node=request["gpus"], timeout_min=7 * 24 * 60)
    job = executor.submit(supervise, str(folder))
    return {"job_id": job.job_id, "controller": executor.controller}


def batch_script(folder: Path, request: dict[str, Any], _site: Site) -> str:
    """What stands in for a batch script on this machine: the command of each process."""
    count = request["gpus"]
    processes = "1 process" if count == 1 else f"{count} processes"
    return (
        f"# No scheduler here: {processes}, in one session\n"
        f"export {FOLDER_VARIABLE}={shlex.quote(str(folder))}\n"
        f"{task.command(shlex.quote(sys.executable), folder / 'logs')}\n"
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


def stop(run: Run) -> None:
    """End a run's processes: ten seconds for the supervisor to do so by itself, then at once."""
    deadline = time.monotonic() + 10
    while next(of_run(run), None) and time.monotonic() < deadline:
        time.sleep(0.1)
    kill_left(run)


def tell(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """What is known of runs that wait or compute here: state, reason, elapsed_s, nodes, by name.

    A run whose processes are gone is left out.
    """
    told = {}
    for run in runs:
        started = run.started
        if not is_alive(run):
            continue
        state, reason, elapsed_s = "pending", waits_for(run), 0
        if started:
            began = datetime.fromisoformat(started["started_at"])
            elapsed_s = max(0, round((datetime.now() - began).total_seconds()))
            state, reason = "running", f"on {started['host']}"
        told[run.name] = {"state": state, "reason": reason, "elapsed_s": elapsed_s, "nodes": 1}
        if not _on_gpu(run):
            told[run.name]["gpus"] = 0
    return told


def _on_gpu(run: Run) -> bool:
    """May the run compute on a GPU of this machine? Its `gpus` are processes, where it may not."""
    return has_gpu() and (run.is_command or run.config.device != "cpu")


def has_gpu() -> bool:
    """Is there a GPU here, as far as its device files tell? To ask PyTorch takes seconds."""
    files = ("nvidia[0-9]*", "kfd", "dxg")  # NVIDIA, AMD, and either inside Windows
    apple = (sys.platform, platform.machine()) == ("darwin", "arm64")
    return apple or any(next(Path("/dev").glob(each), None) for each in files)


class DetachedExecutor(task.Starts, LocalExecutor):
    """A local executor whose jobs lie in a session of their own.

    Interrupting or restarting a Jupyter kernel signals its whole process group. submitit
    starts its controller in that group, and also empties CUDA_VISIBLE_DEVICES unless GPUs
    are asked for; so the controller is started here, with the variables that submitit's
    `start_controller` would set, minus that one. A server of warm starts forks it, if there is one.
    """

    def __init__(self, folder: Path, variables: dict[str, str]) -> None:
        super().__init__(folder)
        self.variables = variables  # for the environment of every process of the job
        self.controller: list[float] = []  # the identity of the process started last

    def _submit_command(self, command: str) -> LocalJob:
        tasks = self.parameters.get("tasks_per_node", 1)
        seconds = int(60 * self.parameters.get("timeout_min", 60))
        env = {
            **job_environment(),
            **self.variables,
            "SUBMITIT_EXECUTOR": "local",
            "SUBMITIT_LOCAL_COMMAND": command,
            "SUBMITIT_LOCAL_NTASKS": str(tasks),
            "SUBMITIT_LOCAL_JOB_NUM_NODES": "1",
            "SUBMITIT_LOCAL_NODEID": "0",
            "SUBMITIT_LOCAL_TIMEOUT_S": str(seconds),
            "SUBMITIT_LOCAL_SIGNAL_DELAY_S": "30",
            "SUBMITIT_STDERR_TO_STDOUT": "",
            "SUBMITIT_LOCAL_WITH_SHELL": "",
        }
        controller, process = client.start_controller(Path(self.folder), env), None
        if controller is None:
            process = subprocess.Popen(
                [*task.CONTROLLER, str(self.folder)],
                env=env,
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
            controller = identity(process.pid)
            client.start_server()  # for the launches that come after this one
        self.controller = controller
        return LocalJob(self.folder, str(int(controller[0])), list(range(tasks)), process)
