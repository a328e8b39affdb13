"""What Slurm is asked for: the batch script of a run, and whether Slurm could run it at all."""

from __future__ import annotations

import math
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.jobs import own_slurm
from course.jobs.sites import Site, user_file
from course.jobs.warm import task
from course.runs.run import FOLDER_VARIABLE

if TYPE_CHECKING:
    from submitit import SlurmExecutor

GRACE_MIN = 2  # Slurm's limit lies so far behind the supervisor's own
# A user's defaults for what these commands show, such as SQUEUE_PARTITION: they would hide jobs.
DISPLAY_DEFAULTS = ("SQUEUE_", "SINFO_", "SACCT_", "SCANCEL_", "SLURM_TIME_FORMAT")


def batch_script(folder: Path, request: dict[str, Any], site: Site) -> str:
    """The whole text that sbatch would get for a run in `folder`; also where there is no Slurm."""
    asked = executor(folder, request, site)
    return asked._make_submission_file_text(asked._submitit_command_str, "")


def executor(folder: Path, request: dict[str, Any], site: Site) -> SlurmExecutor:
    """submitit's executor for a run in `folder`, with all that the site asks for."""
    from submitit import SlurmExecutor

    class Anywhere(task.Starts, SlurmExecutor):
        @classmethod
        def affinity(cls) -> int:
            return 1  # also where there is no srun: a script can be shown there

    made = Anywhere(folder / "logs", python=shlex.quote(sys.executable))
    made.update_parameters(**_parameters(folder, request, site))
    return made


def _parameters(folder: Path, request: dict[str, Any], site: Site) -> dict[str, Any]:
    nodes, tasks = site.shape(request["gpus"])
    named = {name: getattr(site, name) for name in ("partition", "account", "qos", "constraint")}
    extra = {
        name: value if given else True
        for name, given, value in (line.partition("=") for line in site.sbatch)
    }
    return {
        "job_name": folder.name,
        "nodes": nodes,
        "ntasks_per_node": tasks,
        "cpus_per_task": site.cpus_per_gpu,
        "gres": f"gpu:{tasks}",
        "wckey": None,
        "time": math.ceil(site.time_min) + GRACE_MIN,
        "setup": [
            *site.preparation,
            'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"',  # srun of 22.05 and later needs it
            f"export {FOLDER_VARIABLE}={shlex.quote(str(folder))}",
        ],
        "additional_parameters": extra,
        **{key: value for key, value in named.items() if value},
    }


@dataclass(frozen=True)
class Partition:
    """What Slurm says of one: the longest job in minutes (inf: no limit), and its GPUs."""

    name: str
    time_min: float
    gres: str
    is_default: bool = False

    def told(self) -> str:
        limit = "no time limit" if math.isinf(self.time_min) else f"at most {self.time_min:g} min"
        return f"{self.name} ({self.gres} a node, {limit})"


def partitions() -> list[Partition]:
    """The partitions that this user sees; empty where Slurm does not answer."""
    done = ask("sinfo", "--all", "--noheader", "--format=%P|%l|%G")
    if not done or done.returncode:
        return []
    found = {}  # sinfo has a line for each kind of node in a partition: the first stands for it
    for name, limit, gres in (line.split("|") for line in done.stdout.splitlines()):
        known = Partition(name.rstrip("*"), seconds(limit) / 60, gres.strip(), name.endswith("*"))
        found.setdefault(name, known)
    return list(found.values())


def seconds(written: str) -> float:
    """Seconds of a time as Slurm tells it, [days-][hours:]minutes:seconds; inf: none is told."""
    if not written[:1].isdigit():
        return math.inf  # infinite, UNLIMITED, INVALID, n/a
    parts = [int(part) for part in re.findall(r"\d+", written)]
    return sum(n * unit for n, unit in zip(reversed(parts), (1, 60, 3600, 86400)))


def check_partition(site: Site, offers: list[Partition]) -> None:
    """Refuse a job that Slurm would not take, or would let wait for ever."""
    known = {each.name: each for each in offers}
    wanted = site.partition.split(",") if site.partition else []  # Slurm takes the first free one
    if unknown := [name for name in wanted if known and name not in known]:
        raise ValueError(
            f"site {site.name!r}: no partition {unknown[0]!r} here: choose one of "
            f'{", ".join(known)}, as partition = "…" in {user_file()}'
        )
    longest = _longest(site, offers)
    if longest and site.time_min > most_min(site, offers):
        raise ValueError(
            f"time_min={site.time_min:g} is too long for partition {longest.name!r}: at most "
            f"{most_min(site, offers):g}, or the job would wait for ever"
        )


def _longest(site: Site, offers: list[Partition]) -> Partition | None:
    """Of the partitions that a job of the site may go to, the one that gives most time."""
    wanted = site.partition.split(",")
    open_to_it = [
        each for each in offers if each.name in wanted or not wanted[0] and each.is_default
    ]
    return max(open_to_it, key=lambda each: each.time_min, default=None)


def most_min(site: Site, offers: list[Partition]) -> float:
    """The largest time_min that a job of the site may ask for; inf: nothing is known of a limit."""
    longest = _longest(site, offers)
    return longest.time_min - GRACE_MIN if longest else math.inf


def ask(*command: str) -> subprocess.CompletedProcess[str] | None:
    """Run one of Slurm's commands; None where it is not there, or does not answer."""
    env = {key: value for key, value in os.environ.items() if not key.startswith(DISPLAY_DEFAULTS)}
    env |= own_slurm.environment()
    try:
        return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
