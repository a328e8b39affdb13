"""Describe what a lab adds to the course: its exercises, its recorded runs and its entry."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from course.config import HALF_FORMATS, Config
from course.runs.evidence import check_path
from course.runs.run import PROJECT, Run

NODE = 8  # GPUs of a full node, which is available for minutes


class Place(NamedTuple):
    """The hardware on which a run computes, or would compute."""

    device: str  # its type, "cuda" for instance
    half_units: tuple[str, ...]  # 16-bit formats for which it has instructions
    machine: str

    def emulation(self, cfg: Config) -> str:
        """Explain that software emulates the config's 16-bit format here; "" if it does not."""
        if cfg.precision not in HALF_FORMATS or cfg.precision in self.half_units:
            return ""
        return f"{self.machine} has no hardware for {cfg.precision}: software emulates it, slowly"


class Unexpected(Exception):
    """A run lacks what it should show; the message is for the learner."""


def expect(condition: object, hint: str) -> None:
    """Raise Unexpected with this hint unless the condition holds."""
    if not condition:
        raise Unexpected(hint)


@dataclass(frozen=True)
class Exercise:
    """An exercise in a script: the run to launch, the rung to compare with, and what must hold.

    Its seams in the solution, its hints and its commands have the same name.
    """

    title: str
    rung: str
    against: str
    # Evidence of the run itself: a name in words, and its place in the evidence of the record.
    shows: dict[str, str] = field(default_factory=dict)
    # Describes what small runs on a CPU cannot show; `expect` in it reports what is missing.
    describe: Callable[[Run], str] = lambda run: ""
    on_cpu: str = ""  # why the effect cannot be measured on a CPU, if it cannot
    # Returns why it cannot be measured on another place, or "".
    limits: Callable[[Config, Place], str] = lambda cfg, place: ""
    changes: dict[str, Any] = field(default_factory=dict)  # of the rung's config
    settings: dict[str, Any] = field(default_factory=dict)  # of both runs' configs
    full_size: dict[str, Any] = field(default_factory=dict)  # of both, if the check is not quick
    # Changes on a machine without 16-bit hardware, where `half` would change nothing.
    emulated: dict[str, Any] = field(default_factory=dict)
    faster: bool = True  # False: the run must only not be slower
    gpus: int = 1  # of the run; the one before it has one
    timed: bool = True  # False: the TODO has no effect on the speed
    # The small runs in which the script must train like the solution: changes to the rung, and
    # "ranks", "rung" or "name". One of them switches off what the TODO adds.
    configs: tuple[dict[str, Any], ...] = ({},)
    small: dict[str, Any] = field(default_factory=dict)  # of all small runs' configs
    # Functions (MODULE:NAME) of a script's text and a config that yield what is wrong.
    calls: tuple[str, ...] = ()
    # `facts.Fact`s for likely mistakes, causes first: compared if a script fails or FACTS differ.
    causes: tuple[Any, ...] = ()
    # Facts that must be equal, too, because the training would be the same without them.
    facts: tuple[Any, ...] = ()
    name: str = ""  # discovery sets it

    def __post_init__(self) -> None:
        for path in self.shows.values():
            check_path(path)

    def obstacle(self, cfg: Config, place: Place) -> str:
        """Return why the effect cannot be measured on a place, or ""."""
        return (self.on_cpu if place.device == "cpu" else "") or self.limits(cfg, place)


class FunctionCheck(NamedTuple):
    """How to check a function: each check calls it and returns its evidence in words.

    Checks raise an AssertionError whose message tells the learner what is wrong.
    """

    solution: Callable[..., Any]  # the lab uses it until the learner's function is right
    correct: Callable[[Callable[..., Any]], str]
    mechanism: Callable[[Callable[..., Any]], str]


@dataclass(frozen=True)
class Function:
    """A function that learners write in the notebook itself."""

    title: str
    load: Callable[[], FunctionCheck]  # called when needed, because it imports PyTorch


class Planned(NamedTuple):
    """One run of `course record`."""

    config: Config
    gpus: int
    purpose: str


@dataclass(frozen=True)
class Recording:
    """Runs that a lab has recorded on a machine for one purpose, the most important first."""

    purpose: str  # by which runs are selected; labs may share one
    configs: Iterable[Config] = ()  # on a machine with one GPU
    # On a machine with this many GPUs: configs, each with the number of GPUs it uses.
    several: Callable[[int], Iterable[tuple[Config, int]]] | None = None
    node: bool = False  # also record it on a full node
    # What is stored: "all"; "times", with neither evidence nor most steps; "losses", no times
    # either, because several runs share a GPU.
    keep: str = "all"

    def planned(self, gpus: int) -> Iterator[Planned]:
        """Yield the runs for a machine with this many GPUs."""
        runs: Iterable[tuple[Config, int]] = ()
        if gpus == 1:
            runs = ((config, 1) for config in self.configs)
        elif self.several and (gpus < NODE or self.node):
            runs = self.several(gpus)
        yield from (Planned(config, count, self.purpose) for config, count in runs)


@dataclass(frozen=True)
class Lab:
    """One lab: a folder with this entry in lab.py, and a notebook whose name is its place.

    name: of the folder. notebook: the notebook's, without .ipynb. Discovery sets these and folder.
    """

    title: str
    minutes: int  # that a learner takes
    exercises: dict[str, Exercise] = field(default_factory=dict)  # by name, "amp"
    functions: dict[str, Function] = field(default_factory=dict)  # by name, "rounding.carry"
    # `facts.Fact`s that show its mechanism; the checks of all exercises compare them.
    facts: tuple[Any, ...] = ()
    # Titles of checks that the lab itself runs on a file, by name: "start_here.batch_script".
    file_checks: dict[str, str] = field(default_factory=dict)
    # The rungs of the ladder that it teaches, each with its precision.
    rungs: tuple[tuple[str, str], ...] = ()
    # Its runs on machines that a learner does not have, for pages and for recorded sites.
    recordings: tuple[Recording, ...] = ()
    # For instructors: jobs per learner, what to prepare, where people get stuck.
    jobs: str = ""
    prepare: str = ""
    stuck: str = ""
    name: str = ""
    notebook: str = ""
    folder: Path = PROJECT / "labs"

    @property
    def number(self) -> str:
        """The lab's number in the course, "2.1"; "" for an elective."""
        place = re.match(r"day(\d+)_(\d+)_", self.notebook)
        return f"{place[1]}.{place[2]}" if place else ""

    @property
    def label(self) -> str:
        """How prose names the lab: "2.1", or an elective's title."""
        return self.number or self.title

    @property
    def all_checks(self) -> list[str]:
        """The names of all its checks."""
        return [*self.exercises, *self.functions, *self.file_checks]
