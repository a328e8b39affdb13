"""Write a job's batch script: the template is batch.sh.j2; this file checks its values."""

import os
import re
import shlex
import sys
from dataclasses import dataclass
from datetime import datetime
from numbers import Integral
from pathlib import Path
from typing import Any

import jinja2

from course.jobs import slurm_partitions
from course.jobs.sites import Site
from course.runs.files import write_atomically

LOGS = Path("slurm") / "log"
VARIABLE = r"\$(?:[A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})"
# The text that a command may contain. Anything else, such as ; or *, would act in a shell.
PIECES = re.compile(
    rf"""(?P<variable>{VARIABLE}) | (?P<bracket>[\[\]])
    | '[^']*' | "(?:\\.|{VARIABLE}|[^"\\$`])*" | \\.
    | [ \t] | (?<=[^\s])\# | (?<=[^\s=:])~ | [^\s'"\\$`;&|<>()*?{{}}~\#\[\]]""",
    re.VERBOSE | re.DOTALL,
)


@dataclass(frozen=True)
class BatchJob:
    """A command on `tasks` tasks of `cpus` cores on each of `nodes` nodes. Checks its values."""

    site: Site
    command: str
    nodes: int
    tasks: int
    node_gpus: int
    cpus: int
    options: dict[str, Any]  # the other arguments of gpu_jobs_submitter

    def __post_init__(self) -> None:
        check_options(self.options)
        check_counts(cpus_per_task=self.cpus)
        shell_words(self.command)

    @property
    def gpus(self) -> int:
        return self.nodes * self.node_gpus

    @property
    def name(self) -> str:
        """Return the name from the options, or that of the script that the command starts."""
        script = next(iter(self.scripts), _split(self.command)[0])
        stem = re.sub(r"[^\w+=-]", "_", Path(script).name.split(".")[0]).lstrip("+=-")
        return self.options["name"] or stem[:40] or "job"

    @property
    def scripts(self) -> list[Path]:
        """Return the scripts in the command."""
        words = map(os.path.expandvars, _split(self.command))
        return [Path(word) for word in words if word.endswith((".py", ".sh"))]

    def __str__(self) -> str:
        tasks = f"{self.nodes} × {self.tasks} tasks of {self.cpus} cores on {self.site.name}"
        return f"{self.name}, n_gpu={self.gpus}: {tasks}"

    def write(self) -> tuple[Path, str, str]:
        """Write the script; return its path, text, and log path: %j for the id, without .out."""
        now, python = f"{datetime.now():%Y-%m-%d_%H.%M.%S}", Path(sys.executable).parent
        log = f"{LOGS}/{self.name}@JZ_%j_{self.nodes}nodes_{self.tasks}tasks_{now}"
        command, path = shell_words(self.command), LOGS.parent / f"{self.name}.slurm"
        text = render("batch.sh.j2", job=self, log=log, command=command, python=python)
        LOGS.mkdir(parents=True, exist_ok=True)
        write_atomically(path, text)
        return path, text, log


def render(template: str, **values: Any) -> str:
    """Fill in a template of this folder, which quotes for the shell."""
    files = jinja2.FileSystemLoader(Path(__file__).parent)
    templates = jinja2.Environment(loader=files, trim_blocks=True, keep_trailing_newline=True)
    templates.filters["quote"] = lambda value: shlex.quote(str(value))
    return templates.get_template(template).render(values)


def _split(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))  # a backslash at a line's end joins lines


def _quote(piece: re.Match[str]) -> str:
    return f'"{piece[0]}"' if piece["variable"] else "\\" * bool(piece["bracket"]) + piece[0]


def shell_words(command: str) -> str:
    r"""Return a command for a shell as its author wrote it, where only $NAME and ${NAME} act.

    An unquoted variable gets double quotes, so it is one argument; a bracket becomes \[.

    Raise ValueError if there is no program, a quote is not closed, or other text would act.
    """
    if not isinstance(command, str) or "\0" in command:
        raise ValueError(f"command {command!r}: expected a text without NUL characters")
    command = command.strip()
    try:
        first = next(iter(_split(command)), "")
    except ValueError as error:
        raise ValueError(f"command {command!r}: {error}") from error
    if signs := PIECES.sub("", command):
        raise ValueError(f"command {command!r}: {signs!r} would act in a shell: use single quotes")
    if not first or first.startswith("-"):
        raise ValueError(f"command {command!r}: expected a program first, options in slurm_addon")
    command = PIECES.sub(_quote, command)
    return ("python -u " if first.endswith(".py") else "") + command


def minutes(time_max: str) -> float:
    """Read a time limit as Slurm does: minutes, hours:minutes:seconds, days-hours …"""
    text = str(time_max)
    text += ":0" * ((2 if "-" in text else 1) - text.count(":"))  # hours, or minutes, come first
    is_time = re.fullmatch(r"(\d+-)?\d+(:\d+){1,2}", text, re.ASCII)
    if not is_time or not slurm_partitions.seconds(text):
        raise ValueError(
            f"time_max={time_max!r}: expected a time above 0, such as 02:00:00 or 1-12"
        )
    return slurm_partitions.seconds(text) / 60


def check_options(options: dict[str, Any]) -> None:
    """Raise ValueError for an option that no job can have, or that would end its line."""
    name = str(options["name"] or "name")
    if not re.fullmatch(r"\w[\w.+=-]*", name) or len(name.encode()) > 160:
        raise ValueError(f"name={name!r}: expected up to 160 letters, digits, _, and then . + = -")
    for key, value in options.items():
        may_have_lines = key in ("srun_command", "slurm_addon", "script_addon")
        if not may_have_lines and not str(value).isprintable():
            raise ValueError(f"{key}={value!r}: expected one line of text")
    if options["module"] and options["singularity"]:
        raise ValueError("module and singularity: expected one of them, an image has its software")
    minutes(options["time_max"])


def check_counts(**counts: Any) -> None:
    """Raise ValueError for a count that is not a whole number above 0."""
    for key, value in counts.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{key}={value!r}: expected a whole number above 0")
