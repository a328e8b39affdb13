"""What a lab adds to the course: its checks, its recorded runs and what its page shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from course.config import Config
from course.runs.recordings import check_purpose
from course.runs.run import Run
from course.valid import HALF_FORMATS

# Sizes at which machines are recorded.
SYNTHETIC = {"data": "synthetic", "val_steps": 0, "epochs": 1}
FULL_SIZE = SYNTHETIC | {"batch_size": 256, "steps": 60, "warmup_steps": 20}  # a large GPU is busy
NODE = 8  # GPUs of a whole node, which is had for minutes


class Place(NamedTuple):
    """On what a run computes, or would."""

    device: str  # its type, "cuda" for instance
    half_units: tuple[str, ...]  # 16-bit formats that it has instructions for
    machine: str


def emulation_limits(cfg: Config, place: Place) -> str:
    """Return that software emulates the config's 16-bit format there; "" if it does not."""
    if cfg.precision in HALF_FORMATS and cfg.precision not in place.half_units:
        return f"{place.machine} has no hardware for {cfg.precision}: software emulates it, slowly"
    return ""


class Unexpected(Exception):
    """What a run should have shown and did not; the message is for the learner."""


def expect(condition: object, hint: str) -> None:
    """Raise Unexpected with this hint unless the condition holds."""
    if not condition:
        raise Unexpected(hint)


@dataclass(frozen=True)
class Mechanism:
    """What a check looks at: its TODO, the run to launch, the rung to compare with."""

    title: str
    todo: int
    rung: str
    against: str
    # What the run itself did, in words; `expect` in it reports what it did not do. What a small run
    # on a CPU shows is compared with the solution (`configs`), and need not be looked at here.
    describe: Callable[[Run], str]
    word: str  # a line of the script with it is the one to look at
    # Why the effect cannot be measured there, or "".
    limits: Callable[[Config, Place], str] = lambda cfg, place: ""
    changes: dict[str, Any] = field(default_factory=dict)  # of the rung's config
    settings: dict[str, Any] = field(default_factory=dict)  # of both runs' configs
    # Of the rung's config on a machine without 16-bit hardware, where `half` would change nothing.
    emulated: dict[str, Any] = field(default_factory=dict)
    faster: bool = True  # should it be, or only not slower?
    gpus: int = 1  # of the run; the one before it has one
    timed: bool = True  # has it an effect on the speed at all?
    # The small runs in which the script must train as the solution does: changes of the rung, and
    # "ranks", "rung" or "name". One of them has what the TODO adds switched off.
    configs: tuple[dict[str, Any], ...] = ({},)
    small: dict[str, Any] = field(default_factory=dict)  # of all small runs' configs
    # Functions, MODULE:NAME, that yield what is wrong with a script's text, given a config.
    calls: tuple[str, ...] = ()


class FunctionCheck(NamedTuple):
    """How to check a function: each check calls it and returns its evidence in words.

    Checks raise an AssertionError whose message tells the learner what is wrong.
    """

    solution: Callable[..., Any]  # the lab goes on with it until the learner's function is right
    correct: Callable[[Callable[..., Any]], str]
    mechanism: Callable[[Callable[..., Any]], str]


@dataclass(frozen=True)
class Function:
    """A function that learners write in the notebook itself."""

    title: str
    load: Callable[[], FunctionCheck]  # called when needed, because it imports PyTorch


class Planned(NamedTuple):
    """One run that `course record` makes."""

    config: Config
    gpus: int
    purpose: str


@dataclass(frozen=True)
class Recording:
    """Runs that a lab has recorded on a machine for one purpose, what matters most first."""

    purpose: str  # of recordings.PURPOSES
    configs: Iterable[Config] = ()  # on a machine with one GPU
    # On a machine with so many GPUs: configs, each with how many of them it takes.
    several: Callable[[int], Iterable[tuple[Config, int]]] | None = None
    node: bool = False  # is that worth a whole node's time, too?

    def __post_init__(self) -> None:
        check_purpose(self.purpose)

    def planned(self, gpus: int) -> Iterator[Planned]:
        """The runs on a machine with so many GPUs."""
        runs: Iterable[tuple[Config, int]] = ()
        if gpus == 1:
            runs = ((config, 1) for config in self.configs)
        elif self.several and (gpus < NODE or self.node):
            runs = self.several(gpus)
        yield from (Planned(config, count, self.purpose) for config, count in runs)


@dataclass(frozen=True)
class Lab:
    """One lab: the folder `labs/NAME` with this entry in lab.py, and `notebooks/NAME.ipynb`."""

    number: str  # as people call it: "1.1"
    title: str
    minutes: int  # that a learner takes
    checks: dict[str, Mechanism] = field(default_factory=dict)  # by name, "day1.amp"
    functions: dict[str, Function] = field(default_factory=dict)  # by name, "numerics.carry"
    # The ladder's rungs that it teaches, each with its precision.
    rungs: tuple[tuple[str, str], ...] = ()
    # What it shows of machines that a learner does not have, and what a site answers from.
    recordings: tuple[Recording, ...] = ()
    # For instructors: jobs per learner, what to prepare, where people get stuck.
    jobs: str = ""
    prepare: str = ""
    stuck: str = ""
    name: str = ""  # the folder's; discovery fills it in
