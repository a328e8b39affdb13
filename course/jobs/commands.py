"""Batch scripts as jobs of this machine, in one queue with the course's runs.

Such a job trains nothing that the course knows of: its folder has no config, and its record no
measurement.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from datetime import datetime

from course.jobs import launch, local
from course.jobs.sites import Site
from course.runs.files import write_atomically
from course.runs.run import COMMAND, Run, all_jobs


def submit(
    name: str, text: Callable[[int], str], log: str, *, gpus: int, time_min: float, site: Site
) -> str:
    """Put a bash script into this machine's queue, and return the job's id at once.

    It runs in the current folder, without Slurm's variables.

    Args:
        name: of the job. Its id comes after it in the name that the queue shows.
        text: the script, by the job's id.
        log: path of its logs without .out and .err; %j in it becomes the id.

    Raises:
        JobError: the runs folder is not writable.
    """
    with launch.launching() as root:
        last = max((run.launched.get("number", 0) for run in all_jobs()), default=0)
        number = max(int(time.time()), last + 1)  # scripts derive ports from ids: none comes twice
        run = Run(root / f"{name}-{number}")
        request = {
            "name": name,
            "number": number,
            "cwd": os.getcwd(),
            "command": ["bash", str(run.folder / COMMAND)],
            "site": site.name,
            "executor": "local",
            "launched_at": datetime.now().isoformat(timespec="seconds"),
            "log": os.path.abspath(log.replace("%j", str(number))),
            "gpus": gpus,
            "time_min": time_min,
        }
        run.folder.mkdir()
        try:
            (run.folder / COMMAND).write_text(text(number))
            write_atomically(run.folder / "launch.json", json.dumps(request, indent=1))
            request |= local.submit(run.folder, request | {"gpus": 1}, site)
            request |= {"job_id": str(number)}
            write_atomically(run.folder / "launch.json", json.dumps(request, indent=1))
        except BaseException:
            local.withdraw(run)
            shutil.rmtree(run.folder, ignore_errors=True)
            raise
    return str(number)
