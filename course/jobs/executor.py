"""submitit's executor for this machine, made to outlive the notebook that submits."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from submitit import LocalExecutor
from submitit.local.local import LocalJob

from course.jobs.local import identity
from course.jobs.warm import client


class DetachedExecutor(LocalExecutor):
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
            **os.environ,
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
                [sys.executable, "-m", "submitit.local._local", str(self.folder)],
                env=env, start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            controller = identity(process.pid)
            client.start_server()  # for the launches that come after this one
        self.controller = controller
        return LocalJob(self.folder, str(int(controller[0])), list(range(tasks)), process)
