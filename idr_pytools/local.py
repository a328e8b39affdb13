"""Run jobs on this machine without Slurm, with everything that a batch script needs of Slurm."""

import json
import os
import shutil
import sys
import time
from datetime import datetime
from functools import cache
from pathlib import Path

from course.jobs import launch, local
from course.runs.files import write_atomically
from course.runs.run import JOB_FILE, Run, all_jobs
from idr_pytools.script import BatchJob, minutes, render
from trainspeed.resources import core_count


def submit(job: BatchJob) -> str:
    """Put the job into the queue of the course's runs, and return its id at once.

    It runs in the current folder. Its run has no config and no measurement. Raise JobError if the
    runs folder is not writable.
    """
    available = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpu_count())))
    _, text, log = job.write()
    with launch.launching() as root:
        last = max((run.launched.get("number", 0) for run in all_jobs()), default=0)
        number = max(int(time.time()), last + 1)  # scripts derive ports from ids: make them unique
        run = Run(root / f"{job.name}-{number}")
        slurm = render(
            "local.sh.j2",
            job=job,
            number=number,
            visible=",".join(available.split(",")[: job.gpus]),
            cores=core_count(),
            python=sys.executable,
            srun=Path(__file__).with_name("srun.py"),
        )
        request = {
            "name": job.name,
            "number": number,
            "cwd": os.getcwd(),
            "script": str(script := run.folder / "command.sh"),
            "supervisor": "idr_pytools.command:SupervisedCommand",
            "site": job.site.name,
            "executor": "local",
            "launched_at": datetime.now().isoformat(timespec="seconds"),
            "log": os.path.abspath(log.replace("%j", str(number))),
            "gpus": job.gpus,
            "time_min": minutes(job.options["time_max"]),
        }
        run.folder.mkdir()
        try:
            script.write_text(slurm + text)
            write_atomically(run.folder / "launch.json", json.dumps(request, indent=1))
            ticket = local.submit(run.folder, request | {"gpus": 1}, job.site)
            submitted = ticket | {"job_id": str(number)}
            write_atomically(run.folder / JOB_FILE, json.dumps(submitted, indent=1))
        except BaseException:
            shutil.rmtree(run.folder, ignore_errors=True)
            raise
    return str(number)


def check_gpus(gpus: int) -> None:
    """Raise ValueError if this machine has fewer GPUs."""
    available, cores = gpu_count(), os.cpu_count() or 1
    largest = available or max(cores, 8)  # notebooks request a cluster's node: 8 processes
    if gpus > largest:
        devices = f"{available} GPUs" if available else f"no GPU and {cores} cores"
        raise ValueError(f"n_gpu={gpus}: this machine has {devices}: choose 1 to {largest}")


@cache
def gpu_count() -> int:
    """Return how many GPUs PyTorch detects; without one, do not wait for its import."""
    if not local.has_gpu():
        return 0
    import torch

    return torch.accelerator.device_count()
