"""The names that expressions in `facts.toml` may use.

Besides the functions below: all names of `course`, the modules of `course.analysis`, `read_trace`,
`gpus`, `tensor_cores` and `traces`, `labs.NAME` and `electives.NAME` for each lab, `lab` for the
lab of the facts.toml, `exercises`, `all_labs`, `math`, `pd`, `torch`.
"""

# ruff: noqa: F401, F403

import math
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

import pandas as pd
import torch

import electives
import labs
from course import *
from course import Run, analysis, recorded_runs
from course.analysis import read_trace
from course.checks.discovery import exercises
from course.checks.discovery import labs as all_labs
from course.runs import PROJECT
from course.training import models
from trainspeed import gpus, tensor_cores, traces

for _module in iter_modules(analysis.__path__):
    globals()[_module.name] = import_module(f"{analysis.__name__}.{_module.name}")
for _package in (labs, electives):
    for _module in iter_modules(_package.__path__):
        import_module(f"{_package.__name__}.{_module.name}")


@cache
def runs(machine: str, *purposes: str, **config: object) -> list[Run]:
    """Return the successful recorded runs of these purposes whose config has these values."""
    return [
        candidate
        for candidate in recorded_runs(machine, *purposes)
        if candidate.status == "ok" and config.items() <= vars(candidate.config).items()
    ]


def run(machine: str, name: str, *purposes: str, **config: object) -> Run:
    """Return the newest recorded run of the rung `name` whose config has these values."""
    return runs(machine, *purposes, rung=name, **config)[-1]


def ratio(new: Run, old: Run, field: str = "images_per_s") -> float:
    """Divide a field of one run's record by the same field of the other's."""
    return getattr(new.record, field) / getattr(old.record, field)


@cache
def network(name: str, classes: int = 1000, image_px: int = 224) -> torch.nn.Module:
    """Create a network that has shapes but no weights."""
    with torch.device("meta"):
        return models.create(name, classes, image_px)
