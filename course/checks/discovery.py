"""Find the labs: each folder in labs/ that has a lab.py."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path

from course.checks.lab import Exercise, Function, Lab
from course.runs.run import PROJECT

LABS = PROJECT / "labs"
TEMPLATE = "_template"


def folders() -> list[Path]:
    """Return the labs' folders without importing anything."""
    return sorted(path.parent for path in LABS.glob("*/lab.py") if path.parent.name != TEMPLATE)


@cache
def labs() -> tuple[Lab, ...]:
    """Import and return all labs, by number: 0.1, 0.2, 1.1, …, A, B, …"""
    modules = {path.name: import_module(f"labs.{path.name}.lab") for path in folders()}
    named = [replace(module.LAB, name=name) for name, module in modules.items()]
    return tuple(sorted(named, key=lambda lab: lab.number))


def checks() -> dict[str, Exercise]:
    """Return all labs' checks of TODOs by name, such as "amp"."""
    return {name: check for lab in labs() for name, check in lab.checks.items()}


def functions() -> dict[str, Function]:
    """Return all functions that learners write in notebooks by name, such as "rounding.carry"."""
    return {name: function for lab in labs() for name, function in lab.functions.items()}


def file_checks() -> dict[str, str]:
    """Return the titles of checks that labs run on a learner's file, by name."""
    return {name: title for lab in labs() for name, title in lab.file_checks.items()}
