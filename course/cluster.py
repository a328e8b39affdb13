"""A real Slurm on this one machine, for learners without a cluster, and for tests.

munged, MariaDB, slurmdbd, slurmctld and two slurmd run as this user in a folder of their own,
on loopback and on ports of their own, so a Slurm that is there already is not touched. Each of
the two nodes claims 16 cores and four GPUs: the devices are fake, the scheduler is not.
"""

from __future__ import annotations

import getpass
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import psutil
from filelock import FileLock
from platformdirs import user_state_path

from course.cluster_setup import NODES, ClusterError, install, ports, which, write_files

UP_S = 60  # until the nodes are idle


@dataclass(frozen=True)
class Daemon:
    """A program of the cluster: its name here, its command, and where it answers."""

    name: str
    command: list[str]
    socket: Path | None = None  # None: at its port on loopback

    def answers(self) -> bool:
        return self.socket.exists() if self.socket else _listens(ports()[self.name])


def folder() -> Path:
    """Where the cluster lives: the variable COURSE_SLURM, else the user's state folder."""
    given = os.environ.get("COURSE_SLURM")
    return Path(given).resolve() if given else user_state_path("make-training-fast") / "slurm"


def environment() -> dict[str, str]:
    """The variables with which Slurm's commands speak to this cluster; empty if it is not up."""
    conf = folder() / "slurm.conf"
    if "SLURM_CONF" in os.environ or not conf.exists() or not _pids(folder()):
        return {}
    return {"SLURM_CONF": str(conf)}


def up() -> dict[str, str]:
    """Start what is not running of the cluster, and wait until its nodes are idle.

    Programs that are missing are installed first, where that is possible (root, Debian).

    Returns:
        The status, as `status` gives it.

    Raises:
        ClusterError: something is missing, a port is taken, or a program does not come up.
    """
    install()
    home = folder()
    home.mkdir(parents=True, exist_ok=True)
    with FileLock(home / ".lock", timeout=UP_S):
        if "slurmctld" not in _pids(home):
            write_files(home)
        before = _pids(home)
        try:
            for daemon in _daemons(home):
                if daemon.name not in before:
                    _start(daemon, home)
            _wait(lambda: _ready(home) == len(NODES), "the nodes", home)
        except BaseException:  # an interrupt too: nothing half started is left
            for name in set(_pids(home)) - set(before):
                _end(_pids(home)[name])
            raise
    return status()


def down() -> list[str]:
    """End every program of the cluster, jobs too; accounting and logs stay. Says which ended."""
    home, ended = folder(), []
    for daemon in reversed(_daemons(home)):
        if process := _pids(home).get(daemon.name):
            ended.append(daemon.name)
            _end(process)
    for process in _strays(home):  # steps of jobs, which have left their slurmd's group
        _end(process)
    return ended


def status() -> dict[str, str]:
    """What runs: a word for each program, and how many nodes take jobs."""
    home = folder()
    running = _pids(home)
    said = {daemon.name: "running" if daemon.name in running else "not running"
            for daemon in _daemons(home)}  # fmt: skip
    ready = _ready(home) if "slurmctld" in running else 0
    return {**said, "nodes": f"{ready} of {len(NODES)} ready", "folder": str(home)}


def _daemons(home: Path) -> list[Daemon]:
    """In the order in which they need each other. Each stays in the foreground of its session."""
    munge, database = home / "munge" / "socket", home / "run" / "database.sock"
    munged = ["munged", "--foreground", "--force", f"--socket={munge}",
              f"--key-file={home}/munge/key", f"--seed-file={home}/munge/seed",
              f"--pid-file={home}/run/munged.own.pid",
              f"--log-file={home}/log/munged.log"]  # fmt: skip
    # Without a network it is reached by its socket alone, which lies in this user's folder.
    mariadbd = ["mariadbd", "--no-defaults", f"--user={getpass.getuser()}",
                f"--datadir={home}/database", f"--socket={database}", "--skip-networking",
                "--skip-grant-tables", "--innodb-buffer-pool-size=64M"]  # fmt: skip
    return [
        Daemon("munged", munged, munge),
        Daemon("mariadbd", mariadbd, database),
        Daemon("slurmdbd", ["slurmdbd", "-D"]),
        Daemon("slurmctld", ["slurmctld", "-D"]),
        *(Daemon(node, ["slurmd", "-D", "-N", node]) for node in NODES),
    ]


def _start(daemon: Daemon, home: Path) -> None:
    """Start a program in a session of its own, and wait until it answers."""
    if daemon.socket:
        daemon.socket.unlink(missing_ok=True)  # left by a crash, it would look like an answer
    elif daemon.answers():
        port = ports()[daemon.name]
        raise ClusterError(f"port {port} is taken by another program, and {daemon.name} needs it: "
                           f"end that, or choose others by COURSE_SLURM_PORT=NUMBER")  # fmt: skip
    program, *arguments = daemon.command
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "USER", "LANG", "TZ")
            if name in os.environ}  # fmt: skip
    # No more of the user's variables: those of a notebook are not a service's.
    env = {**kept, "SLURM_CONF": str(home / "slurm.conf"),
           "MYSQL_UNIX_PORT": str(home / "run" / "database.sock")}  # fmt: skip
    with (home / "log" / f"{daemon.name}.out").open("w") as output:
        process = subprocess.Popen(
            [which(program), *arguments], env=env, stdin=subprocess.DEVNULL, stdout=output,
            stderr=output, start_new_session=True, cwd=home,
        )  # fmt: skip
    created = psutil.Process(process.pid).create_time()
    (home / "run" / f"{daemon.name}.pid").write_text(f"{process.pid} {created}")
    _wait(lambda: daemon.answers() or process.poll() is not None, daemon.name, home)
    if process.poll() is not None:
        raise ClusterError(f"{daemon.name} ended at once:\n{_last_words(home, daemon.name)}")


def _wait(ready: Callable[[], bool], what: str, home: Path) -> None:
    deadline = time.monotonic() + UP_S
    while not ready():
        if time.monotonic() > deadline:
            raise ClusterError(
                f"{what} did not come up in {UP_S} s; see the logs in {home / 'log'}"
            )
        time.sleep(0.1)


def _last_words(home: Path, name: str) -> str:
    return "\n".join((home / "log" / f"{name}.out").read_text(errors="replace").splitlines()[-8:])


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def _pids(home: Path) -> dict[str, psutil.Process]:
    """The programs that run: each by its pid and time of creation, since pids are reused."""
    found = {}
    for path in (home / "run").glob("*.pid"):
        try:
            pid, created = path.read_text().split()
            process = psutil.Process(int(pid))
            if (
                abs(process.create_time() - float(created)) < 1
                and process.status() != psutil.STATUS_ZOMBIE
            ):
                found[path.stem] = process
        except (ValueError, psutil.Error):
            continue
    return found


def _strays(home: Path) -> list[psutil.Process]:
    """What is left of jobs: steps, which answer at a socket in this folder, and what they ran."""
    conf, found = str(home / "slurm.conf"), []
    for process in psutil.process_iter():
        try:
            if process.name() == "slurmstepd":
                known = (str(each.laddr) for each in process.net_connections("unix"))
                ours = any(address.startswith(f"{home}/") for address in known)
            else:
                variables = process.environ()
                ours = "SLURM_JOB_ID" in variables and variables.get("SLURM_CONF") == conf
        except psutil.Error:
            continue
        found += [process] if ours else []
    return found


def _end(process: psutil.Process) -> None:
    """Ask a program to end, and after ten seconds make it."""
    try:
        children = process.children(recursive=True)
        process.send_signal(signal.SIGTERM)
        process.wait(10)
    except psutil.TimeoutExpired:
        process.kill()
    except psutil.NoSuchProcess:
        return
    for child in children:
        try:
            child.kill()
        except psutil.NoSuchProcess:
            continue


def _ready(home: Path) -> int:
    """How many nodes take jobs, as Slurm's controller tells it; none while it does not answer."""
    env = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
    try:
        done = subprocess.run(["sinfo", "-h", "-N", "-p", "gpu", "-o", "%T"], env=env, timeout=10,
                              capture_output=True, text=True)  # fmt: skip
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(state in ("idle", "mixed", "allocated") for state in done.stdout.split())
