"""The batch script that `course.idr_pytools` writes: what may stand in it, and its whole text."""

from __future__ import annotations

import os
import re
import shlex
import sys
from dataclasses import dataclass
from datetime import datetime
from glob import glob
from numbers import Integral
from pathlib import Path
from typing import Any

from course.idr_pytools.batch import LOGS, check_gpus
from course.jobs.sites import Site

DATE = "%Y-%m-%d_%H.%M.%S"
WORD = (r"\w[\w.@,+:-]*", "letters, digits and _ . @ , + : -")
VALID = {  # nothing that would end a line of #SBATCH, a word of the shell or a file's name
    "name": (r"\w[\w.+=-]{0,79}", "up to 80 letters, digits and _ . + = -, the first no . + = -"),
    "module": (r"\w[\w.+/=-]*( +\w[\w.+/=-]*)*", "names as pytorch-gpu/py3/1.11.0"),
    "singularity": (r"\w[\w.+-]*(/\w[\w.+-]*)*\.sif", "the name of a file that ends in .sif"),
    "qos": WORD,
    "partition": WORD,
    "account": WORD,
    "constraint": (r"[\w\[(][\w.@,+:&|*()\[\]-]*", "letters, digits and any of _.@,+:&|*()[]-"),
    "email": (r"\w[\w.+-]*@\w[\w.-]*", "one address"),
}
QUOTED = re.compile(r"""'[^']*'|"(?:\\.|[^"\\])*"|\\.""", re.DOTALL)
VARIABLE = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*|\{[A-Za-z_][A-Za-z0-9_]*\})")
BRACED = re.compile(r"\$\{(\w+)\}")
PIECE = re.compile(rf"{QUOTED.pattern}|{VARIABLE.pattern}|\$", re.DOTALL)
LITERAL_DOLLAR = "\0"  # in no command: an operating system takes none
# What would act in a shell outside quotes: signs, $( and $1, # before a word, {a,b}.
ACTS = re.compile(r"[;&|<>()`\n]|\$[\d@*#?!$({'-]|(?:^|(?<=\s))#|\{[^}]*(?:,|\.\.)[^}]*\}")
IN_QUOTES = re.compile(r"\$[\d@*#?!$({-]|`")  # and in double ones


class DoesNotFit(ValueError):
    """The site has no room for a job of so many GPUs; another number may fit."""


@dataclass(frozen=True)
class BatchJob:
    """One job: its command on `tasks` tasks of each of `nodes` nodes, with `node_gpus` GPUs each.

    `cpus` are the cores of each task. `asked` holds the other arguments of gpu_jobs_submitter.

    Raises:
        ValueError: one of them is not valid.
    """

    place: Site
    command: str
    nodes: int
    tasks: int
    node_gpus: int
    cpus: int
    asked: dict[str, Any]

    def __post_init__(self) -> None:
        _check(self.asked | {"cpus_per_task": self.cpus})
        command_words(self.command)

    @property
    def gpus(self) -> int:
        return self.nodes * self.node_gpus

    @property
    def name(self) -> str:
        """As asked for, else after the script that the command starts."""
        words = shlex.split(_whole(self.command))
        script = next((word for word in words if word.endswith(".py")), words[0])
        derived = re.sub(r"[^\w+=-]", "_", Path(script).name.split(".")[0]).lstrip("+=-")
        return self.asked["name"] or derived[:40] or "job"

    def __str__(self) -> str:
        tasks = f"{self.nodes} × {self.tasks} tasks of {self.cpus} cores on {self.place.name}"
        if self.place.executor == "local":
            tasks = f"{self.tasks} processes on this machine's {os.cpu_count()} cores"
        return f"{self.name}, n_gpu={self.gpus}: {tasks}"

    def log(self, submitted: datetime) -> str:
        """The path of its logs without .out and .err; %j stands for its id."""
        return f"{LOGS}/{self.name}@JZ_%j_{self.nodes}nodes_{self.tasks}tasks_{submitted:{DATE}}"

    def text(self, log: str) -> str:
        """The whole script, for logs at this path."""
        asked, site = self.asked, dict(line.partition("=")[::2] for line in self.place.sbatch)
        values = {
            "job-name": self.name,
            "output": f"{log}.out",
            "error": f"{log}.err",
            "nodes": self.nodes,
            "ntasks-per-node": self.tasks,
            "gres": f"gpu:{self.node_gpus}" if self.node_gpus else None,
            "cpus-per-task": self.cpus,
            **site,
            "time": asked["time_max"],
        }
        for key in ("qos", "partition", "constraint", "account"):
            values[key] = asked[key] or getattr(self.place, key) or None
        values["exclusive"] = "" if asked["exclusive"] else site.get("exclusive")
        values |= {"mail-user": asked["email"], "mail-type": "ALL"} if asked["email"] else {}
        lines = [_directive(key, value) for key, value in values.items() if value is not None]
        parts = [*lines, *filter(None, [asked["slurm_addon"]]), "", *self._body()]
        return "\n".join(["#!/bin/bash", *parts]) + "\n"

    def _body(self) -> list[str]:
        python = shlex.quote(str(Path(sys.executable).parent))
        talk = ["export NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,COLL"]
        return [
            f'export PATH={python}:"$PATH"  # of the submitter; a module\'s comes before it',
            "export SLURM_KILL_BAD_EXIT=1  # a task that fails ends the others",
            'export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK"  # new versions of srun want it told',
            *(talk if self.asked["verbose"] else []),
            *self._modules(),
            *filter(None, [self.asked["script_addon"]]),
            "",
            "set -x",
            f"time srun {self._srun_words()}",
            "status=$?",
            "date",
            "exit $status",
        ]

    def _modules(self) -> list[str]:
        """The site's setup, and the module where there are such: a job elsewhere goes on."""
        wanted = self.asked["module"] or ("singularity" if self.asked["singularity"] else "")
        if not wanted:
            return self.place.preparation
        names = shlex.join(wanted.split())
        there = "type module > /dev/null 2>&1"
        return [
            f"{there} && module purge",
            *self.place.preparation,
            f"if {there}; then module load {names}",
            f"else echo 'No module command here: went on without {wanted}'; fi",
        ]

    def _srun_words(self) -> str:
        words = command_words(self.command)
        if shlex.split(_whole(self.command))[0].endswith(".py"):
            words = ["python", "-u", *words]
        if self.asked["singularity"]:
            image = f'"$SINGULARITY_ALLOWED_DIR/{self.asked["singularity"]}"'
            words = ["singularity", "exec", "--nv", image, *words]
        return " ".join(words)


def job_of_gpus(place: Site, command: str, gpus: int, asked: dict[str, Any]) -> BatchJob:
    """A job with a task for every `n_gpu_per_task` GPUs, on as few nodes as the site has for them.

    Raises:
        ValueError: an argument is not valid.
        DoesNotFit: the site has no room for so many.
    """
    _check(asked | {"n_gpu": gpus})
    per_task = asked["n_gpu_per_task"]
    try:
        if place.executor == "local":
            check_gpus(gpus)
        nodes = place.shape(gpus)[0] if place.executor == "slurm" else 1
    except ValueError as error:
        raise DoesNotFit(str(error)) from error
    if gpus // nodes % per_task:
        raise DoesNotFit(
            f"n_gpu={gpus} on {nodes} nodes: the GPUs of each must be a multiple of "
            f"n_gpu_per_task={per_task}"
        )
    cpus = asked["cpus_per_task"] or place.cpus_per_gpu * per_task
    return BatchJob(place, command, nodes, gpus // nodes // per_task, gpus // nodes, cpus, asked)


def command_words(command: str) -> list[str]:
    """The words of a command, each quoted for a script: $NAME and ${NAME} act, nothing else does.

    A variable is filled in as one text, as in double quotes; in single quotes, or behind a
    backslash, a dollar is a dollar. A backslash at a line's end joins the lines.

    Raises:
        ValueError: there is no word, a quote is not closed, the first word is an option, or a
            character would act in a shell: a command of the original could have meant it so.
    """
    if not isinstance(command, str) or LITERAL_DOLLAR in command:
        raise ValueError(f"a command must be a text without NUL characters, not {command!r}")
    joined = _whole(command)
    try:
        words = shlex.split(PIECE.sub(_braced, joined))
    except ValueError as error:
        raise ValueError(f"command {command!r}: {error}") from error
    if sign := _acting(joined):
        raise ValueError(
            f"command {command!r}: {sign!r} would act in a shell, and be an argument here. Put it "
            f"in single quotes if it is one, else write it into a script of your own"
        )
    if not words or not words[0] or words[0].startswith("-"):
        raise ValueError(
            f"command {command!r}: it must begin with a program or a .py file; options of srun go "
            f"into slurm_addon, as lines of #SBATCH"
        )
    return [_quoted(word) for word in words]


def seconds(time_max: str) -> int:
    """Seconds of a time limit as Slurm reads it: minutes, hours:minutes:seconds, days-hours …

    Raises:
        ValueError: it is written otherwise, or is no time at all.
    """
    found = re.fullmatch(r"(?:(\d+)-)?(\d+(?::\d+){0,2})", str(time_max), re.ASCII)
    days, clock = (found[1], found[2].split(":")) if found else (None, [])
    units = (3600, 60, 1) if days or len(clock) == 3 else (60, 1)
    total = int(days or 0) * 86400 + sum(int(part) * unit for part, unit in zip(clock, units))
    if not total:
        raise ValueError(
            f"time_max={time_max!r}: it must be above 0, and written as minutes, "
            f"hours:minutes:seconds or days-hours, such as 02:00:00"
        )
    return total


def _acting(command: str) -> str:
    """What of a command a shell would not take as it stands; "" where there is nothing."""
    bare = PIECE.sub(_bare, command)
    if found := ACTS.search(bare):
        return found[0]
    return next((word for word in bare.split() if _is_filled_in(word)), "")


def _is_filled_in(word: str) -> bool:
    """Is it a home, or a pattern? One that fits no file is left alone, by a shell as well."""
    if re.match(r"~(/|$|[+-]|\d)", word) or os.path.expanduser(word) != word:
        return True
    is_open = "'" in word or LITERAL_DOLLAR in word  # what it fits shows in the job alone
    return bool(re.search(r"[*?]", word) if is_open else re.search(r"[*?\[]", word) and glob(word))


def _bare(found: re.Match[str]) -> str:
    """A piece of a command for `_acting`: of quoted text what acts nevertheless, else a mark."""
    text = found[0]
    if text.startswith('"'):
        inner = VARIABLE.sub("", re.sub(r"\\.", "", text, flags=re.S))
        acts = IN_QUOTES.search(inner)
        return acts[0] if acts else "'"
    marks = {"'": "'", "\\": "_", "$": "$" if text == "$" else LITERAL_DOLLAR}
    return marks[text[0]]


def _whole(command: str) -> str:
    """A command whose lines are joined, where a backslash ends them."""
    return QUOTED.sub(_joined, command).strip()


def _joined(found: re.Match[str]) -> str:
    """Without a backslash that ends a line, which joins lines everywhere but in single quotes."""
    if found[0].startswith("'"):
        return found[0]
    return re.sub(r"\\.", lambda pair: "" if pair[0] == "\\\n" else pair[0], found[0], flags=re.S)


def _braced(found: re.Match[str]) -> str:
    """A piece of a command with ${NAME} for a variable, and a mark for any other dollar."""
    text = found[0]
    if text.startswith("'"):
        return text.replace("$", LITERAL_DOLLAR)
    if text.startswith('"'):
        return re.sub(rf"\\.|{VARIABLE.pattern}|\$", _braced, text, flags=re.S)
    if text.startswith("\\"):
        return LITERAL_DOLLAR if text == "\\$" else text
    return LITERAL_DOLLAR if text == "$" else f"${{{text[1:].strip('{}')}}}"


def _quoted(word: str) -> str:
    parts, end = [], 0
    for found in BRACED.finditer(word):
        parts += [word[end : found.start()], f'"{found[0]}"']
        end = found.end()
    parts.append(word[end:])
    literal = [part and shlex.quote(part.replace(LITERAL_DOLLAR, "$")) for part in parts[::2]]
    return "".join(a + b for a, b in zip(literal, [*parts[1::2], ""])) or "''"


def check_counts(**counts: Any) -> None:
    """Refuse what is no whole number above 0.

    Raises:
        ValueError: with the name of what it is.
    """
    for key, value in counts.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise ValueError(f"{key}={value!r}: it must be a whole number above 0")


def check_shape(place: Site, nodes: int, node_gpus: int) -> None:
    """Refuse more nodes, or GPUs of a node, than the site has.

    Raises:
        ValueError: with what it has.
    """
    check_counts(n_gpu_per_node=node_gpus)
    most = (place.nodes, place.gpus_per_node) if place.executor == "slurm" else (1, node_gpus)
    if nodes > most[0] or node_gpus > most[1]:
        raise ValueError(
            f"n_nodes={nodes}, n_gpu_per_node={node_gpus}: {place.name} has nodes of {most[1]} "
            f"GPUs, at most {most[0]} for a job"
        )


def _directive(key: str, value: Any) -> str:
    return f"#SBATCH --{key}" + (f"={shlex.quote(str(value))}" if value != "" else "")


def _check(asked: dict[str, Any]) -> None:
    for key, (pattern, valid) in VALID.items():
        value = asked[key]
        if value and not (isinstance(value, str) and re.fullmatch(pattern, value)):
            raise ValueError(f"{key}={value!r}: it may be {valid}")
    if asked["name"] and len(asked["name"].encode()) > 160:
        raise ValueError(f"name={asked['name']!r} is too long for a file's name")
    seconds(asked["time_max"])
    counts = ("n_gpu", "n_gpu_per_task", "cpus_per_task")
    check_counts(**{key: asked[key] for key in counts if asked.get(key) is not None})
    if asked["module"] and asked["singularity"]:
        raise ValueError("give module or singularity, not both: an image has its own software")
