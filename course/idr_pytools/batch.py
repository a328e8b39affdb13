"""Batch scripts on this machine, for `course.idr_pytools` where there is no Slurm.

They are jobs as the course's own runs are (`course.idr_pytools.commands`): `course queue` shows
them, `course cancel` ends them. Here stands what Slurm would give such a script.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from course.idr_pytools import commands
from course.idr_pytools.commands import Command
from course.jobs.local import has_gpu
from course.jobs.processes import usable_cores
from course.jobs.queue import table
from course.runs.run import Run, runs_root
from course.text import clock

LOGS = Path("slurm") / "log"
NODE_GPUS = 8  # so many processes may share a few cores: notebooks ask for a node of a cluster
# Neither the folder that one works in nor a module's PYTHONPATH may stand before the course.
SRUN = (sys.executable, "-EP", "-m", "course.idr_pytools.srun")
HOST = "localhost"  # as the one node: it resolves on every machine


class Row(NamedTuple):
    """A line of the queue, in squeue's words."""

    job_id: str
    name: str
    state: str
    time: str
    nodes: str
    reason: str


def submit(
    text: str, log: str, *, name: str, gpus: int, tasks: int, cpus: int, limit_s: float
) -> str:
    """Put a job that runs the script `text` into this machine's queue. Returns its id at once.

    Args:
        log: path of its logs without .out and .err; %j in it becomes the id.
        cpus: of each task.
    """

    def command(number: int) -> Command:
        return Command(
            text=text,
            variables=_variables(str(number), name, gpus, tasks, cpus),
            without=["SLURM"],
            log=os.path.abspath(log.replace("%j", str(number))),
            gpus=gpus,
            time_min=limit_s / 60,
        )

    return str(commands.submit(name, command, above=_last_id()).launched["number"])


def queue(name: str | None = None) -> list[Row]:
    """The jobs of this machine that wait or run, of this name (or of several: a,b)."""
    rows = []
    for row in table().itertuples():
        run = Run(runs_root() / row.name)
        if run.launched.get("executor") != "local":
            continue
        passed = clock(0 if row.state == "pending" else row.elapsed_s)
        reason = row.reason if row.state == "pending" else "None"
        called = run.launched.get("name", run.name)
        rows.append(Row(row.job, called, row.state.upper(), passed, str(row.nodes), reason))
    return [row for row in rows if not name or row.name in name.split(",")]


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
    """How many GPUs PyTorch would see here. It is not asked itself: to import it takes seconds."""
    import pynvml

    if not has_gpu():
        return 0
    if (seen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([each for each in seen.split(",") if each.strip()])
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        return pynvml.nvmlDeviceGetCount()
    ask = "import torch; print(torch.accelerator.device_count())"
    done = subprocess.run([sys.executable, "-P", "-c", ask], capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else 0


def _last_id() -> int:
    """The highest id that a log here has; a Slurm may have given it."""
    found = (re.match(r"[^@]*@JZ_(\d+)_", path.name) for path in LOGS.glob("*"))
    return max((int(each[1]) for each in found if each), default=0)


def _variables(number: str, name: str, gpus: int, tasks: int, cpus: int) -> dict[str, str]:
    """What Slurm would set for the job, and `srun` as a function of bash."""
    numbers = ",".join(map(str, range(gpus)))
    slurm = {
        **dict.fromkeys(("JOB_ID", "JOBID"), number),
        "JOB_NAME": name,
        "SUBMIT_DIR": os.getcwd(),
        **dict.fromkeys(("NTASKS", "NPROCS", "NTASKS_PER_NODE", "TASKS_PER_NODE"), str(tasks)),
        **dict.fromkeys(("STEP_NUM_TASKS", "STEP_TASKS_PER_NODE"), str(tasks)),
        **dict.fromkeys(("NNODES", "JOB_NUM_NODES", "STEP_NUM_NODES"), "1"),
        **dict.fromkeys(("NODEID", "STEP_ID", "STEPID"), "0"),
        **dict.fromkeys(("JOB_NODELIST", "NODELIST", "STEP_NODELIST", "SUBMIT_HOST"), HOST),
        "LAUNCH_NODE_IPADDR": "127.0.0.1",
        "CPUS_PER_TASK": str(cpus),
        "CPUS_ON_NODE": str(cpus * tasks),
        "GPUS_ON_NODE": str(gpus),
        **dict.fromkeys(("JOB_GPUS", "STEP_GPUS"), numbers),
    }
    found = {f"SLURM_{key}": value for key, value in slurm.items()} | {
        "SLURMD_NODENAME": HOST,
        "BASH_FUNC_srun%%": f'() {{ {shlex.join(SRUN)} "$@"; }}',
    }
    if tasks > 1 and "OMP_NUM_THREADS" not in os.environ:  # or each starts one for every core
        found["OMP_NUM_THREADS"] = str(max(1, len(usable_cores()) // tasks))
    if devices() > gpus:  # every task sees the job's GPUs, as on a node of Slurm
        seen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        own = seen if len(seen) >= gpus and seen[0] else numbers.split(",")
        found["CUDA_VISIBLE_DEVICES"] = ",".join(own[:gpus])
    return found
