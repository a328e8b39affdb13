"""Find the labs: each folder in labs/ or electives/ that has a lab.py.

A lab's place in the course is the name of its notebook, and is stored nowhere else:
`notebooks/day2_1_dataloader.ipynb` is lab 2.1, `labs/dataloader`; electives begin with `lab_`.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from course.checks.lab import Exercise, Function, Lab
from course.runs.run import PROJECT

PACKAGES = ("labs", "electives")
NOTEBOOKS = PROJECT / "notebooks"
TEMPLATE = "_template"
PLACE = re.compile(r"(day\d+_\d+_|lab_|)(\w+)")  # of a notebook's name: the place, the topic


def folders() -> list[Path]:
    """Return the labs' folders without importing anything."""
    paths = [path for package in PACKAGES for path in (PROJECT / package).glob("*/lab.py")]
    return sorted(path.parent for path in paths if path.parent.name != TEMPLATE)


def topic(notebook: str) -> str:
    """Return the name of the lab that a notebook belongs to, given the notebook's name."""
    return PLACE.fullmatch(notebook)[2] if PLACE.fullmatch(notebook) else notebook


@cache
def labs() -> tuple[Lab, ...]:
    """Import and return all labs in the order of the course, which their notebooks' names give."""
    notebooks = {topic(path.stem): path.stem for path in NOTEBOOKS.glob("*.ipynb")}
    named = []
    for folder in folders():
        module = import_module(f"{folder.parent.name}.{folder.name}.lab")
        place = {"name": folder.name, "notebook": notebooks.get(folder.name, folder.name)}
        named.append(replace(module.LAB, folder=folder, **place))
    return tuple(sorted(named, key=lambda lab: lab.notebook))


def notebook_of(name: str) -> Path:
    """Return the path of a lab's notebook."""
    (lab,) = [lab for lab in labs() if lab.name == name]
    return NOTEBOOKS / f"{lab.notebook}.ipynb"


@cache
def exercises() -> dict[str, Exercise]:
    """Return all labs' exercises in the order of the course, by name, such as "amp".

    Raises:
        ValueError: two labs have an exercise with the same name.
    """
    found: dict[str, Exercise] = {}
    places: dict[str, str] = {}
    for lab in labs():
        for name, exercise in lab.exercises.items():
            if other := places.get(name):
                files = f"labs/{other}/lab.py and labs/{lab.name}/lab.py"
                raise ValueError(f"{files} both have an exercise {name!r}: rename the new one")
            found[name], places[name] = replace(exercise, name=name), lab.name
    return found


def facts(exercise: str) -> tuple[Any, ...]:
    """Return the facts that show the labs' mechanisms, first those of this exercise's lab."""
    ordered = sorted(labs(), key=lambda lab: exercise not in lab.exercises)
    return tuple(fact for lab in ordered for fact in lab.facts)


def functions() -> dict[str, Function]:
    """Return all functions that learners write in notebooks by name, such as "rounding.carry"."""
    return {name: function for lab in labs() for name, function in lab.functions.items()}


def file_checks() -> dict[str, str]:
    """Return the titles of checks that labs run on a learner's file, by name."""
    return {name: title for lab in labs() for name, title in lab.file_checks.items()}
