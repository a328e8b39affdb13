"""The Slurm that `course slurm up` starts on this machine: its folder, and whether it is up."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import psutil
from platformdirs import user_state_path

from course.jobs.processes import alive

SBIN = ("/usr/sbin", "/sbin")  # where Debian puts daemons; not on a user's PATH


def folder() -> Path:
    """Return the cluster's folder: the variable COURSE_SLURM, or one in the user's state folder."""
    path = os.environ.get("COURSE_SLURM")
    return Path(path).resolve() if path else user_state_path("make-training-fast") / "slurm"


def environment() -> dict[str, str]:
    """Return the variables that make Slurm's commands use this cluster; empty if it is down."""
    conf = folder() / "slurm.conf"
    chosen = os.environ.get("SLURM_CONF", str(conf))  # perhaps another cluster
    if chosen != str(conf) or not conf.exists() or not programs(folder()):
        return {}
    return {"SLURM_CONF": str(conf)}


def programs(home: Path) -> dict[str, psutil.Process]:
    """Return the cluster's running programs by name.

    Its pid files hold a pid and a time of creation, because pids are reused.
    """
    running = {}
    for path in (home / "run").glob("*.pid"):
        with suppress(
            ValueError, OSError
        ):  # a pid file that the program wrote, or one half written
            pid, created = path.read_text().split()
            if process := alive([int(pid), float(created)]):
                running[path.stem] = process
    return running


def which(name: str) -> str | None:
    """Return the path of a program, also in folders for daemons; None if it is missing."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))
