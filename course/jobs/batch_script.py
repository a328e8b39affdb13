"""Submit jobs to Slurm with submitit, which writes their batch scripts."""

from __future__ import annotations

import math
import os
import re
import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from course.jobs.sites import Site
from course.runs.errors import JobError
from course.runs.run import FOLDER_VARIABLE
from course.text import LINE, shortened

GRACE_MIN = 2  # from the supervisor's time limit to Slurm's
STAND_IN = "#!/bin/sh\necho Submitted batch job 0\n"  # for sbatch


def batch_script(folder: Path, request: dict[str, Any], site: Site) -> str:
    """Return the batch script of a run in `folder`, also where there is no Slurm.

    submitit writes the script when it submits, so this submits to a program that starts nothing.
    """
    with tempfile.TemporaryDirectory() as temporary:
        programs = Path(temporary, "bin")
        programs.mkdir()
        for name in ("sbatch", "srun"):
            Path(programs, name).write_text(STAND_IN)
            Path(programs, name).chmod(0o700)
        with environment(os.environ | {"PATH": f"{programs}:{os.environ.get('PATH', '')}"}):
            submit_job(Path(temporary, folder.name), request, site)
        text = Path(temporary, folder.name, "logs", "0_submission.sh").read_text()
    written = rf"'?{re.escape(os.path.join(temporary, folder.name))}([^\s']*)'?"
    return re.sub(written, lambda match: shlex.quote(f"{folder}{match[1]}"), text)


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Replace the environment temporarily: sbatch passes its environment on to the job."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def submit_job(folder: Path, request: dict[str, Any], site: Site) -> str:
    """Submit a run's job, whose tasks supervise it, and return its id.

    Args:
        folder: of a run; its name is the job's name, and it gets the logs.
        request: of the launch; its `gpus` become tasks of one GPU each.

    Raises:
        RuntimeError: Slurm refuses the job.
        UnknownJobError: the job was submitted, but its id cannot be read.
    """
    from submitit import SlurmExecutor  # here, because it imports NumPy

    from course.jobs.supervise import supervise_task

    nodes, tasks = site.shape(request["gpus"])
    options = {name: getattr(site, name) for name in ("account", "partition", "qos", "constraint")}
    further = {
        name: value if equals else True
        for name, equals, value in (option.partition("=") for option in site.sbatch)
    }
    python = site.python or shlex.quote(sys.executable)
    executor = SlurmExecutor(folder / "logs", python=f"{python} -P")
    executor.update_parameters(
        job_name=folder.name,
        nodes=nodes,
        ntasks_per_node=tasks,
        cpus_per_task=site.cpus_per_gpu,
        gres=":".join(filter(None, ("gpu", site.gpu_type, str(tasks)))),
        time=math.ceil(site.time_min) + GRACE_MIN,
        signal_delay_s=1,  # submitit's signal must not end a run before its supervisor does
        wckey=None,
        setup=[
            *site.preparation,
            'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # srun needs it since Slurm 22.05',
            f"export {FOLDER_VARIABLE}={shlex.quote(str(folder))}",
        ],
        additional_parameters=further,
        **{name: value for name, value in options.items() if value},
    )
    with patch.object(SlurmExecutor, "_get_job_id_from_submission_command", staticmethod(job_id)):
        return executor.submit(supervise_task, str(folder)).job_id


class UnknownJobError(JobError):
    """sbatch submitted a job, and its output has no id that could be read."""


def job_id(output: str) -> str:
    """Return the job's id from the output of sbatch, or of a site's wrapper around it.

    It is in sbatch's sentence, or alone in a line, perhaps with the cluster's name: 123;cluster.
    Other lines may be a banner.

    Raises:
        UnknownJobError: there is no such line.
    """
    for pattern in (r"Submitted batch job (\d+)", r"^\s*(\d+)(?:;\S+)?\s*$", r"\bjob (\d+)"):
        if numbers := re.findall(pattern, output, re.MULTILINE):
            return numbers[-1]
    raise UnknownJobError(
        f"sbatch succeeded, but printed no job id: {shortened(output.strip(), LINE)!r}. Expected "
        f"'Submitted batch job 123', or only the number, as with --parsable"
    )
