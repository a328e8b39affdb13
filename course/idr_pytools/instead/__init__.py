"""Slurm's commands where there is no Slurm: typed in a notebook, they say what to call instead."""

import os
from pathlib import Path

FOLDER = str(Path(__file__).parent / "commands")


def put_first() -> None:
    """Let this process, and what it starts, find these before a Slurm that answers to nobody."""
    take_away()
    os.environ["PATH"] = os.pathsep.join([FOLDER, os.environ.get("PATH", os.defpath)])


def take_away() -> None:
    """Let Slurm's own commands be found, if there are any."""
    if FOLDER in (kept := os.environ.get("PATH", "").split(os.pathsep)):
        os.environ["PATH"] = os.pathsep.join(each for each in kept if each != FOLDER)
