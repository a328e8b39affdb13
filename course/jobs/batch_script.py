"""Write the batch script of a job for Slurm."""

from __future__ import annotations

import math
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from course.jobs.sites import Site
from course.runs.run import FOLDER_VARIABLE

GRACE_MIN = 2  # from the supervisor's time limit to Slurm's
SCRIPT = Path("logs", "submission.sh")  # in the folder of a job, what was submitted


def batch_script(
    folder: Path,
    request: dict[str, Any],
    site: Site,
    command: Sequence[str] | None = None,
    array: int = 0,
) -> str:
    """Return the batch script of a job, also where there is no Slurm.

    Args:
        folder: of a run; its name is the job's name, and it gets the logs.
        request: of the launch; its `gpus` become tasks of one GPU each.
        command: of each task; None: to supervise the run in `folder`.
        array: the number of jobs, if they are an array.
    """
    nodes, tasks = site.shape(request["gpus"])
    python = [sys.executable, "-uP", "-m"]
    command = [*python, *(command or ["course.jobs.supervise", str(folder)])]
    log = str(folder / "logs" / ("%A_%a" if array else "%j"))
    options = {
        "job-name": folder.name,
        "account": site.account,
        "partition": site.partition,
        "qos": site.qos,
        "constraint": site.constraint,
        "nodes": nodes,
        "ntasks-per-node": tasks,
        "cpus-per-task": site.cpus_per_gpu,
        "gres": f"gpu:{tasks}",
        "time": math.ceil(site.time_min) + GRACE_MIN,
        "output": f"{log}_0_log.out",
        "error": f"{log}_0_log.err",
        "open-mode": "append",
        "array": f"0-{array - 1}" if array else "",
    }
    lines = [f"--{name}={shlex.quote(str(value))}" for name, value in options.items() if value]
    for name, equals, value in (option.partition("=") for option in site.sbatch):
        lines.append(f"--{name}{equals}{shlex.quote(value) if equals else ''}")
    output = ["--output", f"{log}_%t_log.out", "--error", f"{log}_%t_log.err"]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {line}" for line in lines),
            "",
            *site.preparation,
            'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun needs it since Slurm 22.05',
            f"export {FOLDER_VARIABLE}={shlex.quote(str(folder))}",
            shlex.join(["srun", "--unbuffered", *output, *command]),
            "",
        ]
    )
