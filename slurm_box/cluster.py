"""The cluster that this user uses: its folder, its ports, and which of its programs run."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

import psutil
from platformdirs import user_state_path

NODES = ("node1", "node2")
FIRST_PORT = 16817  # of seven; set SLURM_BOX_PORT if two people use one machine
SHARED = Path("/var/lib/slurm_box")  # of the cluster that all accounts of a machine share
SBIN = ("/usr/sbin", "/sbin")  # where Debian puts daemons; not on a user's PATH


class ClusterError(RuntimeError):
    """The cluster cannot be started; the message names the cause and what to do."""


def folder() -> Path:
    """Return the folder of the cluster that this user uses.

    It is the user's own, unless none runs there and root has created a shared one. SLURM_BOX
    chooses it.
    """
    own = own_folder()
    if os.environ.get("SLURM_BOX") or not is_roots(SHARED, SHARED / "slurm.conf") or programs(own):
        return own
    return SHARED


def own_folder() -> Path:
    """Return the folder for a cluster of this user: SLURM_BOX, or one in the state folder."""
    path = os.environ.get("SLURM_BOX")
    return Path(path).resolve() if path else user_state_path("make-training-fast") / "slurm"


def is_roots(*paths: Path) -> bool:
    """Return whether these exist and only root can change them.

    Slurm's commands load plugins from folders that a slurm.conf names, so another user's would run
    code as the reader. A link is never root's only: Linux gives it mode 777.
    """
    try:
        states = [path.lstat() for path in paths]
    except OSError:
        return False
    return all(state.st_uid == 0 and not state.st_mode & 0o022 for state in states)


def ports() -> dict[str, int]:
    """Return the port of each program that has one, all on loopback.

    Raises:
        ClusterError: SLURM_BOX_PORT is not a port.
    """
    first = os.environ.get("SLURM_BOX_PORT", str(FIRST_PORT))
    if not first.isdecimal() or not 1024 <= int(first) <= 65530:
        raise ClusterError(f"SLURM_BOX_PORT={first!r}: expected a number from 1024 to 65530")
    names = ("slurmctld", "slurmdbd", *NODES)
    return {name: int(first) + 2 * number for number, name in enumerate(names)}


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
        # A pid file that the program wrote, or one half written; a program that has ended.
        with suppress(ValueError, OSError, psutil.Error):
            pid, created = path.read_text().split()
            process = psutil.Process(int(pid))
            is_same = abs(process.create_time() - float(created)) < 1
            if is_same and process.status() != psutil.STATUS_ZOMBIE:
                running[path.stem] = process
    return running


def which(name: str) -> str | None:
    """Return the path of a program, also in folders for daemons; None if it is missing."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", ""), *SBIN]))
