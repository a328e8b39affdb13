"""IDRIS's notebook library: notebooks written for it run here without changing a line.

Like the original it works in the current folder: batch scripts in slurm/, logs in slurm/log/.
COURSE_SITE names the site that runs the jobs. Without it they go to Jean Zay if its variable
IDRPROJ is set, else to a Slurm that answers, else to this machine (`idr_pytools.local`).
"""

import os
import re
import shutil
import subprocess
import time as clock
from collections.abc import Iterable, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from IPython import get_ipython
from IPython.display import clear_output

import slurm_box
from course.jobs import queue, sites, slurm_partitions
from course.jobs.batch_script import job_id
from course.jobs.launch import JobError
from course.jobs.processes import job_environment
from course.jobs.sites import Site
from course.runs import trust
from idr_pytools import local
from idr_pytools.script import LOGS, BatchJob, check_counts

__all__ = [
    "display_slurm_queue",
    "display_slurm_queue_jupyter",
    "gpu_jobs_submitter",
    "search_log",
    "slurm_file_creator",
]

PATIENCE_S = 300  # with a Slurm that does not answer; a papermill run must not hang
JEAN_ZAY = {  # the nodes that a partition, a constraint or the account's suffix selects
    **dict.fromkeys(("gpu_p13", "gpu_p1", "gpu_p3", "v100-16g", "v100-32g", "v100"), "v100"),
    **dict.fromkeys(("gpu_p2", "gpu_p2s", "gpu_p2l"), "v100-octo"),
    **dict.fromkeys(("gpu_p5", "a100"), "a100"),
    **dict.fromkeys(("gpu_p6", "h100"), "h100"),
    "gpu_p4": "a100-40g",
}


def gpu_jobs_submitter(
    srun_commands: str | Iterable[str],
    n_gpu: int | Iterable[int] = 1,
    module: str | None = None,
    singularity: str | None = None,
    name: str | None = None,
    n_gpu_per_task: int = 1,
    time_max: str = "02:00:00",
    qos: str | None = None,
    partition: str | None = None,
    constraint: str | None = None,
    cpus_per_task: int | None = None,
    exclusive: bool = False,
    account: str | None = None,
    verbose: int = 0,
    email: str | None = None,
    slurm_addon: str | None = None,
    script_addon: str | None = None,
) -> list[str]:
    """Submit a job for each GPU count and each command, and return their ids.

    Args:
        srun_commands: what srun starts on every task, or several; `python -u` comes before a .py
            file. $WORK is one argument; the shell's other special characters need quotes: ; | > ~ *
        n_gpu: GPUs of a job: up to one node, or full nodes. A list leaves out what does not fit.
        module, singularity: what to load, or the image to run in; not both.
        name: of the job, its script and its logs; None: the name of the command's script.
        n_gpu_per_task, cpus_per_task: GPUs and cores of a task; None: the site's cores per GPU.
        time_max, qos, partition, constraint, account: as in Slurm; None: the site's own.
        verbose: 1 lets NCCL print what it does.
        slurm_addon, script_addon: lines of #SBATCH and of shell, written as they are.

    Raise ValueError for an invalid argument (nothing is submitted then), or if Slurm refuses a job.
    Raise JobError, and submit nothing, if others can change what the jobs execute.
    """
    jobs, ids = _jobs(**locals()), []
    _check_trust(jobs)
    for job in jobs:
        try:
            ids.append(local.submit(job) if job.site.executor == "local" else _sbatch(job))
        except (ValueError, JobError) as error:
            before = ", ".join(ids) or "none"
            raise ValueError(f"{error} (submitted before it: {before})") from error
        print(f"Submitted batch job {ids[-1]}: {job}")
    return ids


def slurm_file_creator(
    srun_command: str,
    n_nodes: int = 1,
    n_tasks_per_node: int = 1,
    n_gpu_per_node: int = 0,
    module: str | None = None,
    name: str | None = None,
    singularity: str | None = None,
    time: str = "02:00:00",
    qos: str | None = None,
    partition: str | None = None,
    constraint: str | None = None,
    cpus_per_task: int | None = None,
    exclusive: bool = False,
    account: str | None = None,
    verbose: int = 0,
    email: str | None = None,
    slurm_addon: str | None = None,
    script_addon: str | None = None,
) -> str:
    """Write a batch script for sbatch, as `gpu_jobs_submitter` would, and return its path."""
    options = locals() | {"time_max": time}
    gpus = n_gpu_per_node or 0
    check_counts(n_nodes=n_nodes, n_tasks_per_node=n_tasks_per_node, n_gpu_per_node=gpus or 1)
    site = _site(account, partition, constraint) if gpus else _site()
    if not gpus:
        site = replace(site, partition="", constraint="", modules=(), cpus_per_gpu=1)
    cpus = cpus_per_task or site.cpus_per_gpu * max(1, gpus // n_tasks_per_node)
    options = _without_foreign_names(site, options)
    job = BatchJob(site, srun_command, n_nodes, n_tasks_per_node, gpus, cpus, options)
    _check_trust([job])
    return str(job.write()[0])


def display_slurm_queue(name: str | None = None, timestep: float = 5) -> None:
    """Show your jobs, or those with this name, until none is left. Interrupt it: they continue."""
    site, pause_s, answered = _site(), max(1.0, float(timestep)), clock.monotonic()
    try:
        while (text := _queue(site, name)) != "":
            answered = clock.monotonic() if text else answered
            if clock.monotonic() > answered + PATIENCE_S:
                print("Slurm has not answered for long: stopped looking. Its jobs may continue.")
                return
            _show(text or "Slurm does not answer just now: waiting for it.")
            clock.sleep(pause_s)
    except KeyboardInterrupt:
        print("Stopped looking: the jobs continue.")
        return
    _show(f"No job{f' named {name}' if name else ''} waits or runs any more.")


display_slurm_queue_jupyter = display_slurm_queue  # the original has both names


class Logs(dict[str, list[str]]):
    """Log paths by kind. A number is an index into "stderr", as on slides of the original."""

    def __missing__(self, number: int) -> str:
        return dict(enumerate(self["stderr"]))[number]


def search_log(
    name: str = "*", contains: str | int | Iterable[str | int] = "", with_err: bool = False
) -> list[str] | Logs:
    """Return sorted paths of logs: slurm/log/NAME@JZ_ID_2nodes_4tasks_2021-02-12_22.05.09.out.

    Args:
        name: the job's name, or a pattern as in a shell, with * and ? and [0-9].
        contains: a job's id, or a pattern for part of the file's name: "2nodes*2021"; or several.
        with_err: True returns a dict of "stdout" and "stderr", whose [0] is the first of "stderr".
    """
    paths = sorted(LOGS.iterdir()) if LOGS.is_dir() else []
    ids = {match[1] for path in paths if (match := re.match(r"[^@]*@JZ_(\d+)_", path.name))}
    patterns = [
        f"*@JZ_{part}_*" if isinstance(part, int) or part in ids else f"*{part}*"
        for part in _as_list(contains)
    ]
    logs = Logs(stdout=[], stderr=[])
    for path in paths:
        kind = {".out": "stdout", ".err": "stderr"}.get(path.suffix)
        matches = kind and fnmatchcase(path.name.partition("@")[0], name)
        if matches and any(fnmatchcase(path.stem, pattern) for pattern in patterns):
            logs[kind].append(f"./{path}")
    return logs if with_err else logs["stdout"]


def _as_list(value: Any) -> list[Any]:
    return [value] if isinstance(value, str) or not isinstance(value, Iterable) else list(value)


def _check_trust(jobs: Sequence[BatchJob]) -> None:
    """Raise JobError if others can change what the jobs execute, or lead their logs elsewhere."""
    scripts = [script for job in jobs for script in job.scripts]
    trust.check(scripts, [Path.cwd(), LOGS.parent, LOGS, *(script.parent for script in scripts)])


def _jobs(srun_commands: Any, n_gpu: Any, **options: Any) -> list[BatchJob]:
    """Return a job for each GPU count and each command: a task for `n_gpu_per_task` GPUs."""
    site = _site(options["account"], options["partition"], options["constraint"])
    options, per_task = _without_foreign_names(site, options), options["n_gpu_per_task"]
    jobs, counts, commands = [], _as_list(n_gpu), _as_list(srun_commands)
    for gpus in counts:
        check_counts(n_gpu=gpus, n_gpu_per_task=per_task)
        try:
            nodes = site.shape(gpus)[0] if site.executor == "slurm" else 1
            if site.executor == "local":
                local.check_gpus(gpus)
            if gpus // nodes % per_task:
                raise ValueError(f"n_gpu={gpus}: a node's must be multiples of {per_task} per task")
        except ValueError as error:
            if len(counts) == 1:
                raise
            print(f"{error}. That member of n_gpu is left out.")
            continue
        shape = nodes, gpus // nodes // per_task, gpus // nodes
        cpus = options["cpus_per_task"] or site.cpus_per_gpu * per_task
        jobs += [BatchJob(site, command, *shape, cpus, options) for command in commands]
    if not jobs:
        raise ValueError("nothing to submit: expected a command and a number of GPUs that fits")
    return jobs


def _site(
    account: str | None = None, partition: str | None = None, constraint: str | None = None
) -> Site:
    """Return the site where a job of this account, partition and constraint runs."""
    if "COURSE_SITE" in os.environ or "IDRPROJ" not in os.environ:
        site = sites.get(os.environ.get("COURSE_SITE") or ("slurm" if _has_slurm() else "local"))
        commands, path = Path(__file__).with_name("no_slurm"), os.environ.get("PATH", os.defpath)
        if site.executor == "local" and str(commands) not in path:
            os.environ["PATH"] = f"{path}{os.pathsep}{commands}"  # its commands replace Slurm's
        return site
    names = partition, constraint, (account or "").partition("@")[2]
    name = next(filter(None, names), "v100")
    kinds = _kinds_of_nodes(name)
    if len(kinds) != 1 or None in kinds:
        raise ValueError(f"{name!r} is unknown at Jean Zay: expected one of {', '.join(JEAN_ZAY)}")
    return sites.get(f"jean-zay-{kinds.pop()}")


def _kinds_of_nodes(value: str) -> set[str | None]:
    return {JEAN_ZAY.get(part) for part in re.findall(r"[\w-]+", value)}


def _has_slurm() -> bool:
    """Return whether a Slurm is configured here, even if it is down for a while."""
    if not shutil.which("sbatch"):
        return False
    if "SLURM_CONF" in os.environ | slurm_box.environment():
        return True
    process = slurm_partitions.ask("squeue", "--me", "--noheader")
    return not process or "configuration source" not in process.stderr  # without slurm.conf


def _without_foreign_names(site: Site, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options without Jean Zay's names on the course's own cluster, with a message."""
    conf = (os.environ | slurm_box.environment()).get("SLURM_CONF")
    if site.executor == "slurm" and conf == str(slurm_box.folder() / "slurm.conf"):
        for key in ("partition", "constraint"):
            if options[key] and None not in _kinds_of_nodes(options[key]):
                print(f"{key}={options[key]} is left out: the course's cluster has no such name.")
                options = options | {key: None}
    return options


def _sbatch(job: BatchJob) -> str:
    """Hand a job to Slurm and return its id."""
    # The text, not the file: a different job with this name may overwrite it.
    command, env = [_program("sbatch"), "--parsable"], job_environment() | slurm_box.environment()
    process = subprocess.run(command, input=job.write()[1], env=env, capture_output=True, text=True)
    if process.returncode:
        reason = " ".join(process.stderr.replace("sbatch: error: ", "").split())
        raise ValueError(f"Slurm refused the job {job}: {reason}")
    try:
        return job_id(process.stdout)
    except JobError as error:  # other jobs may have its name, so it is not cancelled
        raise ValueError(f"{error}. The job {job} may run: see display_slurm_queue()") from error


def _queue(site: Site, name: str | None) -> str | None:
    """Return the table of jobs with this name; "": there is none, None: Slurm does not answer."""
    if site.executor == "local":
        table = queue.table()
        jobs = [job.rpartition("-")[0] for job in table["name"]]
        table = table[[not name or job in name.split(",") for job in jobs]]
        return "" if table.empty else queue.as_lines(table)
    _program("squeue")
    names = [f"--name={name}"] if name else []
    columns = "--format=%.10i %.24j %.10T %.11M %.6D %R"
    process = slurm_partitions.ask("squeue", "--me", columns, *names)
    if process is None or process.returncode:
        return None
    return process.stdout.rstrip() if process.stdout.count("\n") > 1 else ""  # more than the header


def _show(text: str) -> None:
    if get_ipython():  # a notebook, where the text replaces the previous one
        clear_output(wait=True)
    print(text, flush=True)


def _program(name: str) -> str:
    if path := shutil.which(name):
        return path
    raise ValueError(f"there is no {name} here: use a login node, or set COURSE_SITE=local")
