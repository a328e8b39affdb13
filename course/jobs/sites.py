"""Sites: the places where jobs run, from sites.toml and the user's file."""

from __future__ import annotations

import math
import os
import re
import shlex
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from course.runs.recordings import SITE, machines
from course.runs.run import EXECUTORS
from course.runs.user_folder import user_file
from course.text import closest, read_utf8

MIN_RANKS = 4  # processes that any machine may start, even on one core: a mesh of 2 × 2

# The values of a setting by the type of its field; a second line of text would be a command.
_EXPECTED: dict[str, tuple[Callable[[Any], bool], str]] = {
    "str": (
        lambda value: isinstance(value, str) and value.isprintable(),
        'one line of text in quotes: {} = "..."',
    ),
    "tuple[str, ...]": (
        lambda value: (
            isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)
        ),
        'a list of texts: {} = ["...", "..."]',
    ),
    "int": (lambda value: type(value) is int and value > 0, "a whole number above 0: {} = 4"),
    "float": (
        lambda value: type(value) in (int, float) and 0 < value < math.inf,
        "minutes, above 0, without quotes: {} = 60",
    ),
    "bool": (lambda value: isinstance(value, bool), "true or false"),
}


@dataclass(frozen=True)
class Site:
    """A place that runs jobs, with its settings."""

    name: str
    executor: str = "local"
    time_min: float = 60
    data_root: str = ""
    shared: bool = False  # only local: all users of the machine take turns
    # Only for Slurm:
    gpus_per_node: int = 4
    gpu_type: str = ""  # as in --gres, where a site demands it, such as "a100"
    cpus_per_gpu: int = 1  # for each task; a task has one GPU
    nodes: int = 1  # at most, for one job
    account: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    sbatch: tuple[str, ...] = ()  # further options: "name=value", or only "name"
    modules: tuple[str, ...] = ()  # to load before the job
    setup: tuple[str, ...] = ()  # lines of shell before the job, after the modules
    python: str = ""  # starts Python in a job, perhaps in a container; "": the Python that launches

    def __post_init__(self) -> None:
        for field in fields(self):
            is_valid, expected = _EXPECTED[str(field.type)]
            value = getattr(self, field.name)
            if not is_valid(value):
                expected = expected.format(field.name)
                raise ValueError(f"site {self.name!r}: {field.name}={value!r}: expected {expected}")
        if self.executor not in EXECUTORS:
            raise ValueError(
                f"site {self.name!r}: executor={self.executor!r}: expected one of "
                f"{', '.join(EXECUTORS)}"
            )
        slurm_only = "gpu_type account partition qos constraint sbatch modules setup python"
        for name in slurm_only.split():
            if self.executor != "slurm" and getattr(self, name):
                raise ValueError(
                    f'site {self.name!r}: {name} is a setting of Slurm: add executor = "slurm"'
                )
        for line in self.sbatch:
            if not re.fullmatch(r"[a-z][a-z-]*(=[^\n\r]*)?", line):
                raise ValueError(
                    f"site {self.name!r}: sbatch={line!r}: write name=value, or name, without --"
                )

    @property
    def preparation(self) -> list[str]:
        """Return the shell lines before the job: the modules, then the set-up."""
        return [*(f"module load {shlex.quote(name)}" for name in self.modules), *self.setup]

    def shape(self, gpus: int) -> tuple[int, int]:
        """Return nodes, and tasks per node, of a job with this many GPUs, one per task.

        Raises:
            ValueError: they are too many, or more than one node but not whole nodes.
        """
        per_node, most = self.gpus_per_node, self.nodes * self.gpus_per_node
        if not 1 <= gpus <= most or (gpus > per_node and gpus % per_node):
            valid = "1" if per_node == 1 else f"1 to {per_node}"
            valid += f", or a multiple of {per_node} up to {most}" if most > per_node else ""
            raise ValueError(
                f"gpus={gpus}: site {self.name!r} has nodes of {per_node} GPUs, at most "
                f"{self.nodes} for a job: choose {valid} (whole nodes)"
            )
        return (1, gpus) if gpus <= per_node else (gpus // per_node, per_node)

    def check_gpus(self, gpus: int) -> None:
        """Raise ValueError if this site cannot give a job this many devices (processes)."""
        if self.executor == "slurm":
            self.shape(gpus)
        if self.executor != "local":  # a recording has a number of GPUs
            return
        most = max(MIN_RANKS, os.cpu_count() or 1)
        if not 1 <= gpus <= most:
            raise ValueError(f"gpus={gpus}: site {self.name!r} takes 1 to {most} on this machine")


def get(name: str, path: Path | None = None) -> Site:
    """Return the site of this name, as the course and a file (`user_file`) describe it.

    Raises:
        ValueError: no such site, or an entry with unknown or wrong settings; the message
            lists the valid ones and names the file.
    """
    entries, path = _read(Path(__file__).with_name("sites.toml")), path or user_file()
    entries |= {SITE + machine: {"executor": "recorded"} for machine in machines()}
    for key, entry in (_read(path) if path.exists() else {}).items():
        entries[key] = {**entries.get(key, {}), **entry}
    if name not in entries:
        known = ", ".join(entries)
        near = closest(name, entries) + " (COURSE_SITE)" * (name == os.environ.get("COURSE_SITE"))
        raise ValueError(f"no site {name!r}{near}: choose {known}, or add it to {path}")
    settings = [field.name for field in fields(Site) if field.name != "name"]
    for key in entries[name]:
        if key not in settings:
            raise ValueError(
                f"site {name!r} has no setting {key!r}{closest(key, settings)}: choose "
                f"{', '.join(settings)} (see {path})"
            )
    try:
        return _with_account(Site(name=name, **entries[name]))
    except ValueError as error:
        raise ValueError(f"{error} (see {path})") from None


def _with_account(site: Site) -> Site:
    """Fill in the user's default account, which no job inherits (`processes.job_environment`)."""
    has_account = site.account or any(option.startswith("account") for option in site.sbatch)
    if site.executor != "slurm" or has_account:
        return site
    return replace(site, account=os.environ.get("SBATCH_ACCOUNT", ""))


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        entries = tomllib.loads(read_utf8(path))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as TOML: {error}") from error
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise ValueError(
                f"{path}: {name!r} is outside a site: put it under [local], for example"
            )
    return entries
