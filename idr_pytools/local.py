"""Jobs on this machine, where there is no Slurm: what a batch script needs of Slurm."""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

from course.jobs import commands
from course.jobs.local import has_gpu
from course.jobs.processes import usable_cores
from idr_pytools.script import BatchJob, minutes, render


def submit(job: BatchJob) -> str:
    """Put the job into this machine's queue, and return its id at once."""
    available = os.environ.get("CUDA_VISIBLE_DEVICES") or ",".join(map(str, range(gpu_count())))
    visible = ",".join(available.split(",")[: job.gpus])
    _, text, log = job.write()
    cores, srun = len(usable_cores()), Path(__file__).with_name("srun.py")
    values = {"job": job, "visible": visible, "cores": cores, "python": sys.executable}

    def script(number: int) -> str:
        return render("local.sh.j2", number=number, srun=srun, **values) + text

    time_min = minutes(job.options["time_max"])
    return commands.submit(job.name, script, log, gpus=job.gpus, time_min=time_min, site=job.site)


def shape(gpus: int) -> tuple[int, int]:
    """Return 1 node and its tasks. Raise ValueError if this machine has fewer GPUs."""
    available, cores = gpu_count(), os.cpu_count() or 1
    largest = available or max(cores, 8)  # notebooks request a cluster's node: 8 processes
    if gpus > largest:
        devices = f"{available} GPUs" if available else f"no GPU and {cores} cores"
        raise ValueError(f"n_gpu={gpus}: this machine has {devices}: choose 1 to {largest}")
    return 1, gpus


@cache
def gpu_count() -> int:
    """Return how many GPUs PyTorch detects, without the seconds and memory of its import here."""
    if not has_gpu():
        return 0
    code = "import torch; print(torch.accelerator.device_count())"
    process = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    return int(process.stdout) if process.returncode == 0 else 0
