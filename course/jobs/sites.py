"""Sites: the places where jobs run, from sites.toml and the user's own file."""

from __future__ import annotations

import math
import os
import re
import shlex
import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from platformdirs import user_config_path

from course.runs.recordings import SITE, check_shipped, machines
from course.runs.run import EXECUTORS
from course.text import closest

MIN_RANKS = 4  # processes that any machine may start, even on one core: a mesh of 2 × 2


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
    cpus_per_gpu: int = 1  # for each task; a task has one GPU
    nodes: int = 1  # at most, for one job
    account: str = ""
    partition: str = ""
    qos: str = ""
    constraint: str = ""
    sbatch: tuple[str, ...] = ()  # further options: "name=value", or only "name"
    modules: tuple[str, ...] = ()  # to load before the job
    setup: tuple[str, ...] = ()  # lines of shell before the job, after the modules

    def __post_init__(self) -> None:
        for field in fields(self):
            self._check_type(field.name, str(field.type))
        if self.executor not in EXECUTORS:
            raise self._error("executor", f"one of {', '.join(EXECUTORS)}")
        if not 0 < self.time_min < math.inf:
            raise self._error("time_min", "minutes, above 0: time_min = 60")
        for name in ("gpus_per_node", "cpus_per_gpu", "nodes"):
            if getattr(self, name) < 1:
                raise self._error(name, f"a whole number above 0: {name} = 4")
        for name in ("account", "partition", "qos", "constraint", "sbatch", "modules", "setup"):
            if self.executor != "slurm" and getattr(self, name):
                raise ValueError(
                    f'site {self.name!r}: {name} is a setting of Slurm: add executor = "slurm"'
                )
        if not isinstance(self.shared, bool) or (self.shared and self.executor != "local"):
            raise ValueError(
                f"site {self.name!r}: shared={self.shared!r}: expected true or false, true "
                f'only with executor = "local", where all users of a machine then take turns'
            )
        for line in self.sbatch:
            if not re.fullmatch(r"[a-z][a-z-]*(=[^\n\r]*)?", line):
                raise ValueError(
                    f"site {self.name!r}: sbatch={line!r}: write name=value, or name, without --"
                )

    def _check_type(self, name: str, kind: str) -> None:
        """Raise ValueError unless a setting has the type of its field; text must be one line."""
        value = getattr(self, name)
        if kind == "str":
            if not isinstance(value, str) or not value.isprintable():  # a second line: a command
                raise self._error(name, f'one line of text in quotes: {name} = "..."')
        elif kind == "tuple[str, ...]":
            is_list = isinstance(value, list | tuple)
            if not is_list or not all(isinstance(item, str) for item in value):
                raise self._error(name, f'a list of texts: {name} = ["...", "..."]')
        elif kind == "int" and type(value) is not int:
            raise self._error(name, f"a whole number, without quotes: {name} = 4")
        elif kind == "float" and type(value) not in (int, float):
            raise self._error(name, f"a number, without quotes: {name} = 60")

    def _error(self, name: str, expected: str) -> ValueError:
        return ValueError(
            f"site {self.name!r}: {name}={getattr(self, name)!r}: expected {expected}"
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
        if self.executor != "local":  # a recording has its own number
            return
        most = max(MIN_RANKS, os.cpu_count() or 1)
        if not 1 <= gpus <= most:
            raise ValueError(f"gpus={gpus}: site {self.name!r} takes 1 to {most} on this machine")


def user_file() -> Path:
    """Return the file of the user's own sites: COURSE_SITES, or one in the config folder."""
    path = os.environ.get("COURSE_SITES")
    return Path(path) if path else user_config_path("make-training-fast") / "sites.toml"


def get(name: str) -> Site:
    """Return the site of this name.

    Raises:
        ValueError: no such site, or an entry with unknown or wrong settings; the message
            lists the valid ones and names the file.
    """
    entries, own = _read(Path(__file__).with_name("sites.toml")), user_file()
    entries |= {SITE + machine: {"executor": "recorded"} for machine in machines()}
    for key, entry in (_read(own) if own.exists() else {}).items():
        entries[key] = {**entries.get(key, {}), **entry}
    if name not in entries:
        if name.startswith(SITE):
            check_shipped()
        known = ", ".join(entries)
        near = closest(name, entries)
        raise ValueError(f"no site {name!r}{near}: choose {known}, or add it to {own}")
    settings = [field.name for field in fields(Site) if field.name != "name"]
    for key in entries[name]:
        if key not in settings:
            raise ValueError(
                f"site {name!r} has no setting {key!r}{closest(key, settings)}: choose "
                f"{', '.join(settings)} (see {own})"
            )
    try:
        return Site(name=name, **entries[name])
    except ValueError as error:
        raise ValueError(f"{error} (see {own})") from None


def _read(path: Path) -> dict[str, dict[str, Any]]:
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} cannot be read as TOML: {error}") from error
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise ValueError(
                f"{path}: {name!r} is outside a site: put it under [local], for example"
            )
    return entries
