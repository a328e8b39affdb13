"""IDRIS's notebook library by its own names: its notebooks run here (`import idr_pytools`).

Like the original it works in the current folder: batch scripts in slurm/, logs in slurm/log/.
COURSE_SITE names the site that runs the jobs; else it is Jean Zay's where its variable IDRPROJ
is set, else the Slurm that answers, else this machine (`course.idr_pytools.batch`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from course.idr_pytools import batch, instead, script
from course.idr_pytools.batch import LOGS, Row
from course.idr_pytools.script import BatchJob, DoesNotFit, job_of_gpus, seconds
from course.jobs import sites, slurm_commands
from course.jobs.cluster import control
from course.jobs.launch import JobError
from course.jobs.processes import job_environment
from course.jobs.sites import Site
from course.runs.files import write_atomically

PATIENCE_S = 300  # with a Slurm that does not answer; a papermill run must not hang
# The course's sites of Jean Zay, by what leads there: partition, constraint, end of the account.
PARTITIONS = {
    **dict.fromkeys(("gpu_p13", "gpu_p1", "gpu_p3"), "v100"),
    **dict.fromkeys(("gpu_p2", "gpu_p2s", "gpu_p2l"), "v100-octo"),
    "gpu_p4": "a100-40g",
    "gpu_p5": "a100",
    "gpu_p6": "h100",
}
CONSTRAINTS = {"v100-16g": "v100", "v100-32g": "v100", "a100": "a100", "h100": "h100"}
ACCOUNTS = {"v100": "v100", "a100": "a100", "h100": "h100"}
# Jean Zay's names, which the course's own cluster does not have: its notebooks shall run there.
ELSEWHERE = {"partition": r"gpu_p\w+", "constraint": r"[avh]100(-\w+)?"}


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
            file. The job fills in $WORK or ${WORK}, each as one text, but not in single quotes.
            What else would act in a shell, as ; | > ~, is refused outside quotes.
        n_gpu: GPUs of a job, or several numbers: up to a node's, or whole nodes, up to the
            site's. Of several, those that do not fit are left out, with a line that says so.
        module, singularity: what to load, or the image to run in; not both.
        name: of the job, its script and its logs; None: after the command's script.
        n_gpu_per_task, cpus_per_task: GPUs and cores of a process; None: the site's for each GPU.
        time_max: hours:minutes:seconds, days-hours or minutes, as Slurm reads it.
        qos, partition, constraint, account: of Slurm; None: the site's own.
        verbose: 1 lets NCCL tell what it does.
        slurm_addon, script_addon: #SBATCH lines, shell before the command: written as they are.

    Raises:
        ValueError: an argument is not valid (nothing is submitted then), or Slurm refuses a job:
            the message has Slurm's words, and the jobs that were submitted before.
    """
    return _submit_all(_jobs(**locals()))


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
    """Write a batch script, for a job with GPUs or without, and return its path, for sbatch.

    Args:
        n_nodes, n_tasks_per_node, n_gpu_per_node: its shape; 0 GPUs make it a job of cores alone.
        cpus_per_task: cores of a task; None: with GPUs the site's for each, else 1.

    The other arguments are those of `gpu_jobs_submitter`; `time` is its time_max.

    Raises:
        ValueError: an argument is not valid; nothing is written then.
    """
    job = _job_of_shape(**locals())
    LOGS.mkdir(parents=True, exist_ok=True)
    path = Path("slurm") / f"{job.name}.slurm"
    write_atomically(path, job.text(job.log(datetime.now())))
    return str(path)


def display_slurm_queue(name: str | None = None, timestep: float = 5) -> None:
    """Show your jobs that wait or run until there are none. Interrupt it: the jobs go on.

    Args:
        name: only jobs of this name.
        timestep: seconds between two looks, at least 1.

    Raises:
        ValueError: the site needs Slurm, and its commands are not here.
    """
    shown, pause_s, silent_since = "", max(1.0, float(timestep)), None
    try:
        here = _place(None, None).executor == "local"
        if not here and not control.which("squeue"):
            raise ValueError("there is no squeue here: use a login node, or set COURSE_SITE=local")
        while (rows := batch.queue(name) if here else _squeue(name)) is None or rows:
            shown = _show(rows, shown, pause_s)
            silent_since = None if rows is not None else silent_since or time.monotonic()
            if silent_since and time.monotonic() > silent_since + PATIENCE_S:
                print("Slurm has not answered for long: stopped looking. Its jobs may go on.")
                return
            time.sleep(pause_s)
    except KeyboardInterrupt:
        print("Stopped looking: the jobs go on.")
        return
    _clear_output()
    print(f"No job{f' named {name}' if name else ''} waits or runs any more.")


display_slurm_queue_jupyter = display_slurm_queue  # the original has it under both names


def search_log(
    name: str = "*", contains: str | int | Iterable[str | int] = "", with_err: bool = False
) -> list[str] | Logs:
    """Paths of logs in slurm/log, sorted. Patterns are those of a shell: * and ? and [0-9].

    A log is called NAME@JZ_ID_2nodes_4tasks_2021-02-12_22.05.09.out.

    Args:
        name: the job's name, or a pattern for it.
        contains: the id of a job whose log is here, a pattern for any part of the file's name, as
            "2nodes*2021-02-12", or several, of which one must fit.
        with_err: False: .out files. True: {"stdout": […], "stderr": […]}, whose [0] is the first
            of "stderr".
    """
    paths = sorted(LOGS.iterdir()) if LOGS.is_dir() else []
    ids = {found[1] for path in paths if (found := re.match(r"[^@]*@JZ_(\d+)_", path.name))}
    parts = [
        f"*@JZ_{each}_*" if isinstance(each, int) or each in ids else f"*{each}*"
        for each in _several(contains)
    ]
    found, kinds = Logs(stdout=[], stderr=[]), {".out": "stdout", ".err": "stderr"}
    for path in paths:
        fits = fnmatchcase(path.name.partition("@")[0], name)
        fits = fits and any(fnmatchcase(path.stem, each) for each in parts)
        if fits and path.suffix in kinds:
            found[kinds[path.suffix]].append(f"./{path}")
    return found if with_err else found["stdout"]


class Logs(dict[str, list[str]]):
    """Log paths by kind. A number counts within "stderr", as slides of the original have it."""

    def __missing__(self, key: Any) -> Any:
        if isinstance(key, int):
            return self["stderr"][key]
        raise KeyError(key)


def _several(given: Any) -> list[Any]:
    many = isinstance(given, Iterable) and not isinstance(given, str)
    return list(given) if many else [given]


def _place(account: str | None, partition: str | None, constraint: str | None = None) -> Site:
    """The site where a job of this account, partition and constraint runs.

    Raises:
        ValueError: one of them is none of Jean Zay's.
    """
    instead.take_away()
    if "COURSE_SITE" not in os.environ and "IDRPROJ" in os.environ:
        return sites.get(f"jean-zay-{_jean_zays(account or '', partition, constraint)}")
    is_here = _slurm_is_here()
    place = sites.get(os.environ.get("COURSE_SITE") or ("slurm" if is_here else "local"))
    if place.executor == "local" and not is_here and _in_kernel():
        instead.put_first()
    return place


def _jean_zays(account: str, partition: str | None, constraint: str | None) -> str:
    """The kind of nodes that the first of them leads to which is given."""
    for what, value, known in (
        ("partition", partition, PARTITIONS),
        ("constraint", constraint, CONSTRAINTS),
        ("the account's end", account.partition("@")[2], ACCOUNTS),
    ):
        kinds = {known.get(each) for each in re.findall(r"[\w-]+", value or "")}
        if value and (len(kinds) != 1 or None in kinds):
            raise ValueError(
                f"{what} {value!r} is none that the course knows of Jean Zay: choose "
                f"{', '.join(known)}; or describe it as a site of your own, and name that in "
                f"COURSE_SITE"
            )
        if value:
            return kinds.pop()
    return "v100"


def _without_gpus(place: Site) -> Site:
    """Where a job of cores alone runs: no partition or constraint of GPUs, nor their modules."""
    return replace(place, partition="", constraint="", modules=())


def _slurm_is_here() -> bool:
    """Is there a Slurm to speak to? Also where it does not answer: it may be down for a while."""
    if not control.which("sbatch"):
        return False
    if "SLURM_CONF" in {**os.environ, **control.environment()}:
        return True
    done = slurm_commands.ask("squeue", "--me", "--noheader")
    return done is None or "configuration source" not in done.stderr  # its words without slurm.conf


def _left_out(place: Site, asked: Mapping[str, Any]) -> dict[str, None]:
    """Jean Zay's names among the arguments, on the course's own cluster; they are told."""
    spoken_to = {**os.environ, **control.environment()}.get("SLURM_CONF")
    if place.executor != "slurm" or spoken_to != str(control.folder() / "slurm.conf"):
        return {}
    names = [name for name, theirs in ELSEWHERE.items() if re.fullmatch(theirs, str(asked[name]))]
    for name in names:
        print(f"{name}={asked[name]} is left out: the course's own cluster has none of that name.")
    return dict.fromkeys(names)


def _jobs(srun_commands: Any, n_gpu: Any, **asked: Any) -> list[BatchJob]:
    """A job for each GPU count and each command, all with the other arguments."""
    place = _place(asked["account"], asked["partition"], asked["constraint"])
    asked |= _left_out(place, asked)
    jobs, counts, every = [], _several(n_gpu), _several(srun_commands)
    for gpus in counts:
        try:
            jobs += [job_of_gpus(place, each, gpus, asked) for each in every]
        except DoesNotFit as error:
            if len(counts) == 1:
                raise
            refused = error
            print(f"{error}. That member of n_gpu is left out.")
    if counts and every and not jobs:
        raise refused
    return jobs


def _job_of_shape(
    srun_command: str, n_nodes: int, n_tasks_per_node: int, n_gpu_per_node: int, **asked: Any
) -> BatchJob:
    """The job that `slurm_file_creator` writes down."""
    n_gpu_per_node = n_gpu_per_node or 0
    script.check_counts(n_nodes=n_nodes, n_tasks_per_node=n_tasks_per_node)
    if n_gpu_per_node:
        place = _place(asked["account"], asked["partition"], asked["constraint"])
        script.check_shape(place, n_nodes, n_gpu_per_node)
    else:
        place = _without_gpus(_place(None, None, None))
    per_task = max(1, n_gpu_per_node // n_tasks_per_node)
    cpus = asked["cpus_per_task"] or (place.cpus_per_gpu * per_task if n_gpu_per_node else 1)
    asked |= {"time_max": asked.pop("time")} | _left_out(place, asked)
    return BatchJob(place, srun_command, n_nodes, n_tasks_per_node, n_gpu_per_node, cpus, asked)


def _submit_all(jobs: list[BatchJob]) -> list[str]:
    if not jobs:
        raise ValueError("nothing to submit: give a command and a number of GPUs")
    ids: list[str] = []
    for job in jobs:
        try:
            ids.append(_submit(job))
        except (ValueError, JobError) as error:
            before = ", ".join(ids) or "none"
            raise ValueError(f"{error} (submitted before it: {before})") from error
        print(f"Submitted batch job {ids[-1]}: {job}")
    return ids


def _submit(job: BatchJob) -> str:
    """Write the job's script, and hand it to Slurm or to this machine: its id."""
    LOGS.mkdir(parents=True, exist_ok=True)
    log = job.log(datetime.now())
    text = job.text(log)
    write_atomically(Path("slurm") / f"{job.name}.slurm", text)
    if job.place.executor == "local":
        limit_s = seconds(job.asked["time_max"])
        return batch.submit(
            text, log, name=job.name, gpus=job.gpus, tasks=job.tasks, cpus=job.cpus, limit_s=limit_s
        )
    program = control.which("sbatch")
    if not program:
        raise ValueError("there is no sbatch here: use a login node, or set COURSE_SITE=local")
    # By its standard input: another job of this name may write the file meanwhile.
    done = subprocess.run(
        [program, "--parsable"],
        input=text,
        capture_output=True,
        text=True,
        env=job_environment() | control.environment(),
    )
    if done.returncode:
        words = " ".join(line.partition("error: ")[2] or line for line in done.stderr.splitlines())
        raise ValueError(f"Slurm refused the job {job}: {words}")
    return done.stdout.strip().partition(";")[0]


def _squeue(name: str | None) -> list[Row] | None:
    """This user's jobs as squeue tells them, of this name; None where Slurm does not answer."""
    wanted = [f"--name={name}"] if name else []
    done = slurm_commands.ask("squeue", "--me", "--noheader", "--format=%i|%T|%M|%D|%r|%j", *wanted)
    if done is None or done.returncode:
        return None
    rows = []
    for line in done.stdout.splitlines():
        number, state, passed, nodes, reason, job = line.split("|", 5)
        rows.append(Row(number, job, state, passed, nodes, reason))
    return rows


def _show(rows: list[Row] | None, shown: str, pause_s: float) -> str:
    """Show the queue in place of the last one, or in a terminal where more than times changed."""
    unanswered = f"Slurm does not answer just now; it is asked again every {pause_s:g} s."
    text = unanswered if rows is None else _table(rows)
    key = unanswered if rows is None else str([row._replace(time="") for row in rows])
    if _clear_output() or key != shown:
        print(text, flush=True)
    return key


def _table(rows: list[Row]) -> str:
    lines = [Row("JOBID", "NAME", "STATE", "TIME", "NODES", "REASON"), *rows]
    widths = [max(map(len, column)) for column in zip(*lines)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths)] for line in lines]
    return "\n".join("  ".join(cells).rstrip() for cells in padded)


def _clear_output() -> bool:
    """Clear the cell's output when the next text comes. False where there is no notebook."""
    if not _in_kernel():
        return False
    from IPython.display import clear_output

    clear_output(wait=True)
    return True


def _in_kernel() -> bool:
    ipython = sys.modules.get("IPython")
    return bool(ipython) and hasattr(ipython.get_ipython(), "kernel")
