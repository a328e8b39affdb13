"""Run a command with the probe in it, as `trainspeed profile` does."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

INJECT = Path(__file__).with_name("inject")
PLAN = "TRAINSPEED_PLAN"
ELASTIC = "TORCHELASTIC_RUN_ID"  # in the environment of torchrun's ranks
POLL_S = 0.2
GRACE_S = 5.0


class CommandError(ValueError):
    """A command that cannot be started; the message has the fix."""


def environment(plan: Any, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the environment in which every Python process loads the probe: `env` and more."""
    before = env.get("PYTHONPATH")  # if empty: none, but in a list it is the current directory
    paths = [str(INJECT), *([before] if before else [])]
    values = {"PYTHONPATH": os.pathsep.join(paths), PLAN: json.dumps(asdict(plan))}
    return {"KINETO_LOG_LEVEL": "99", **env, **values}  # or a trace adds lines to the output


def check_command(command: Sequence[str]) -> list[str]:
    """Return the command, with a Python script by this Python.

    Raises:
        CommandError: the program does not exist.
    """
    if not command:
        raise CommandError("no command: write it after --, as in `-- python train.py --epochs 1`")
    if command[0].endswith(".py"):
        command = [sys.executable, *command]
    if command[0].endswith(".ipynb"):
        raise CommandError(f"{command[0]} is a notebook: use trainspeed.Watch in its loop")
    if shutil.which(command[0]) is None:
        raise CommandError(
            f"{command[0]}: no such program. Give the command as in a terminal, "
            f"for example `-- python train.py`"
        )
    return [*command]


@contextmanager
def started(command: Sequence[str], env: dict[str, str]) -> Iterator[subprocess.Popen]:
    """Start a command that uses this terminal; when the block ends, nothing of it is left."""
    process = subprocess.Popen(command, env=env)
    handlers = {
        number: signal.signal(number, lambda number, frame: _send(process, number))
        for number in (signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield process
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        end(process)


def _send(process: subprocess.Popen, number: int) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(number)


def end(process: subprocess.Popen) -> None:
    """End a process and all that it started, first by SIGTERM.

    All stop first: otherwise, a rank may report that another one has ended. torchrun's agent gets
    SIGKILL, because it would print a traceback about SIGTERM.
    """
    with suppress(psutil.NoSuchProcess):
        parent = psutil.Process(process.pid)
        family = [*parent.children(recursive=True), parent]
        agents = _agents(family)

        def stop(member: psutil.Process) -> None:
            member.kill() if member.pid in agents else member.terminate()

        for act in (psutil.Process.suspend, stop, psutil.Process.resume):
            for member in family:
                with suppress(psutil.NoSuchProcess):
                    act(member)
        _, alive = psutil.wait_procs(family, timeout=GRACE_S)
        for member in alive:
            with suppress(psutil.NoSuchProcess):
                member.kill()
    process.wait()


def _agents(family: list[psutil.Process]) -> set[int]:
    """Return the ids of torchrun's agents, which start ranks and only wait for them."""
    parents = {}
    for member in family:
        with suppress(psutil.Error, OSError):
            if ELASTIC in member.environ():
                parents[member.pid] = member.ppid()
    return {parent for parent in parents.values() if parent not in parents}


def watch(
    process: subprocess.Popen, is_ready: Callable[[], bool], when_ready: Callable[[], bool]
) -> int:
    """Wait for a process, and call `when_ready` once if `is_ready`; it returns whether to stop.

    Ctrl-C reaches the process, too: it has a chance to end by itself.

    Returns:
        The process's exit code; 0 if it was stopped.
    """
    is_shown = False
    try:
        while process.poll() is None:
            if not is_shown and is_ready():
                is_shown = True
                if when_ready():
                    return 0
            time.sleep(POLL_S)
    except KeyboardInterrupt:
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(GRACE_S)
        return 130
    code = process.returncode
    return 128 - code if code < 0 else code
