"""A real Slurm on this one machine, for learners without a cluster, and for tests.

munged, MariaDB, slurmdbd, slurmctld and two slurmd run as this user in a folder of their own,
on loopback and on ports of their own, so a Slurm that is there already is not touched. (Slurm's
accounting daemon knows no loopback alone; it answers to nobody without the key in that folder.)
Each of the two nodes claims 16 cores and four GPUs: the devices are fake, the scheduler is not.
"""

from __future__ import annotations

import getpass
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from course.jobs.own_slurm import folder, programs, which
from course.jobs.processes import identity
from tools.slurm_box.setup import (
    NODES,
    ClusterError,
    Daemon,
    daemons,
    install,
    ports,
    write_files,
)

UP_S = 60  # until the nodes are idle
DOWN_S = 15  # until the jobs are over; Slurm kills those that do not heed it after KillWait
RELEASED_S = 5  # that the port of a program takes to be free after it was killed


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
    with _alone(home):
        if "slurmctld" not in programs(home):
            write_files(home)
        before = programs(home)
        try:
            for daemon in daemons(home):
                if daemon.name not in before:
                    _start(daemon, home)
            _wait(lambda: _nodes_are_ready(home), "the nodes", home)
            _release_failed_launches(home)
        except BaseException:  # an interrupt too: nothing half started is left
            for name in set(programs(home)) - set(before):
                _end(programs(home)[name])
            raise
    return status()


def down() -> list[str]:
    """End every program of the cluster, jobs too; accounting and logs stay. Says which ended."""
    home, ended = folder(), []
    _cancel_jobs(home)
    for daemon in reversed(daemons(home)):
        if process := programs(home).get(daemon.name):
            ended.append(daemon.name)
            _end(process)
    _end_strays(home)
    return ended


def _cancel_jobs(home: Path) -> None:
    """End all jobs the usual way, that accounting knows it, as far as the controller answers."""
    deadline = time.monotonic() + DOWN_S
    if (
        "slurmctld" in programs(home)
        and _asked(home, "scancel", f"--user={getpass.getuser()}") is not None
    ):
        while _asked(home, "squeue", "-h") and time.monotonic() < deadline:
            time.sleep(0.2)


def _end_strays(home: Path) -> None:
    """End what a crash left of jobs: steps leave their slurmd's group."""
    strays = _strays(home)
    for process in strays:
        with suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(strays, timeout=3)[1]:  # slurmstepd pays no heed to that
        with suppress(psutil.NoSuchProcess):
            process.kill()


def status() -> dict[str, str]:
    """What runs: a word for each program, and how many nodes take jobs."""
    home = folder()
    running = programs(home)
    said = {
        daemon.name: "running" if daemon.name in running else "not running"
        for daemon in daemons(home)
    }
    ready = _ready(home) if "slurmctld" in running else 0
    return {**said, "nodes": f"{ready} of {len(NODES)} ready", "folder": str(home)}


def _is_taken(daemon: Daemon) -> bool:
    """Does another program answer at its port, and for longer than one that was just killed?"""
    deadline = time.monotonic() + RELEASED_S
    while daemon.answers():
        if time.monotonic() > deadline:
            return True
        time.sleep(0.1)
    return False


def _start(daemon: Daemon, home: Path) -> None:
    """Start a program in a session of its own, and wait until it answers."""
    if daemon.socket:
        daemon.socket.unlink(missing_ok=True)  # left by a crash, it would look like an answer
    elif _is_taken(daemon):
        port = ports()[daemon.name]
        raise ClusterError(
            f"port {port} is taken by another program, and {daemon.name} needs it: "
            f"end that, or choose others by COURSE_SLURM_PORT=NUMBER"
        )
    program, *arguments = daemon.command
    kept = {
        name: os.environ[name]
        for name in ("PATH", "HOME", "USER", "LANG", "TZ")
        if name in os.environ
    }
    # No more of the user's variables: those of a notebook are not a service's.
    env = {
        **kept,
        "SLURM_CONF": str(home / "slurm.conf"),
        "MYSQL_UNIX_PORT": str(home / "run" / "database.sock"),
    }
    with (home / "log" / f"{daemon.name}.out").open("w") as output:
        process = subprocess.Popen(
            [which(program), *arguments],
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            cwd=home,
        )
    pid, created = identity(process.pid)
    (home / "run" / f"{daemon.name}.pid").write_text(f"{pid} {created}")
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


@contextmanager
def _alone(home: Path) -> Iterator[None]:
    try:
        with FileLock(home / ".lock", timeout=UP_S):
            yield
    except Timeout as error:
        raise ClusterError(f"another course slurm up is at work in {home}: try again") from error


def _nodes_are_ready(home: Path) -> bool:
    """Take nodes back that a controller, killed under a job, has drained; one at a time."""
    for line in (_asked(home, "sinfo", "-h", "-N", "-p", "gpu", "-o", "%N %T") or "").splitlines():
        node, state = line.split()
        if state.startswith(("drain", "down")):
            _asked(home, "scontrol", "update", f"nodename={node}", "state=resume")
    return _ready(home) == len(NODES)


def _release_failed_launches(home: Path) -> None:
    """Release jobs that Slurm holds because their start failed, as when its controller ended then.

    Slurm itself never does. It starts them two minutes after the failure at the earliest.
    """
    for line in (_asked(home, "squeue", "-h", "-o", "%i %r") or "").splitlines():
        number, reason = line.split(maxsplit=1)
        if reason == "launch failed requeued held":
            _asked(home, "scontrol", "release", number)


def _ready(home: Path) -> int:
    """How many nodes take jobs, as Slurm's controller tells it; none while it does not answer."""
    said = _asked(home, "sinfo", "-h", "-N", "-p", "gpu", "-o", "%T") or ""
    # One whose job has just ended is "completing": its other cores take jobs meanwhile.
    takes_jobs = ("idle", "mixed", "allocated", "completing")
    return sum(state in takes_jobs for state in said.split())


def _asked(home: Path, *command: str) -> str | None:
    """What one of Slurm's commands prints; None where it fails, or the controller is silent."""
    env = {**os.environ, "SLURM_CONF": str(home / "slurm.conf")}
    try:
        done = subprocess.run(command, env=env, timeout=10, capture_output=True, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
