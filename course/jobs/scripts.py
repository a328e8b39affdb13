"""Start scripts and commands as processes of a job.

Scripts are forks of a process that has already imported PyTorch: `multiprocessing`'s fork server
with a preload list. The fork server ends with the process that started it.
"""

from __future__ import annotations

import atexit
import ctypes
import multiprocessing
import os
import runpy
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from pathlib import Path

import psutil

from course.runs.run import FOLDER_VARIABLE, OBJECT_KEY
from course.runs.user_folder import protect_compile_cache

PR_SET_PDEATHSIG, PR_SET_NAME = 1, 15  # of Linux's prctl
PROBE_PLAN = "TRAINSPEED_PLAN"  # how the iterations of a script without a meter are timed
FORK_SERVER_ENDED = 255  # exit code that multiprocessing reports without a fork server to ask
SAVE_SIGNALS = (signal.SIGTERM, signal.SIGUSR1)  # before the end of a job
LONGEST_FOLDER = 70  # of the fork server's socket, whose path can have at most 107 characters


@dataclass(frozen=True)
class Surroundings:
    """A process's environment, working directory, and log files (None: those of its parent).

    It may also import the modules in the folder `modules`.
    """

    env: dict[str, str]
    folder: Path
    out: Path | None = None
    err: Path | None = None
    modules: Path | None = None


def process_context(*, preload: bool) -> BaseContext:
    """Return the `multiprocessing` context that starts a job's processes.

    Args:
        preload: import PyTorch before the first fork, which then takes seconds, and all others
            milliseconds.
    """
    if sys.platform != "linux":  # forking a process with Apple's frameworks crashes
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    modules = ["course.jobs.fork_server", "course.jobs.preload"]
    context.set_forkserver_preload(modules if preload else modules[:1])
    # Slurm signals all processes of a job, and a script that then saves is waited for through it.
    before = [signal.signal(number, signal.SIG_IGN) for number in SAVE_SIGNALS]
    folder_before = tempfile.tempdir
    if len(tempfile.gettempdir()) > LONGEST_FOLDER:
        tempfile.tempdir = "/tmp"
    forkserver.ensure_running()
    for number, handler in zip(SAVE_SIGNALS, before):
        signal.signal(number, handler)
    tempfile.tempdir = folder_before
    return context


def fork_server_has_ended() -> bool:
    """Return whether the process from which scripts are forked was killed; waits up to a second."""
    pid = getattr(forkserver._forkserver, "_forkserver_pid", None)
    deadline = time.monotonic() + 1
    while pid and time.monotonic() < deadline:
        # Not waited for: multiprocessing does this when it starts the next one.
        with suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                time.sleep(0.02)
                continue
        return True
    return False


def run_script(
    script: Path,
    surroundings: Surroundings,
    arguments: Sequence[str] = (),
    connection: Connection | None = None,
) -> None:
    """Do what `python script` does, in a new session.

    Args:
        connection: to the conductor of a group of runs that take turns.
    """
    atexit._clear()  # the handlers of this process's parent
    enter(surroundings)
    protect_compile_cache()
    _prctl(PR_SET_NAME, script.name.encode())  # in `ps` and `top`
    # Or DataLoader workers would be started by a fork server, as this process was.
    multiprocessing.set_start_method(None, force=True)
    if connection:
        from course.training import turns

        turns.connection = connection
    if "torch" in sys.modules:
        _reset_libraries()
    if os.environ.get("WORLD_SIZE", "1") != "1":  # alone, a script may start ranks in its own way
        from course import _compat

        _compat.sign_objects(Path(os.environ[FOLDER_VARIABLE], OBJECT_KEY).read_bytes())
    if surroundings.modules:  # a script of the learner's own, which has no meter
        from trainspeed import probe

        probe.install()
    sys.argv[:] = [str(script), *arguments]
    sys.path[:0] = [str(path) for path in (script.parent, surroundings.modules) if path]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except Exception as error:
        _print_traceback(error, str(script))
        sys.exit(1)
    finally:
        atexit._run_exitfuncs()  # which multiprocessing leaves out before Python 3.14


def end_with_parent() -> None:
    """Let the system kill this process when its parent ends."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _prctl(option: int, value: bytes | int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def enter(surroundings: Surroundings) -> None:
    for number in SAVE_SIGNALS:
        signal.signal(number, signal.SIG_DFL)
    os.setsid()  # so that everything it starts can be ended with it
    end_with_parent()  # the fork server, which ends with the supervisor
    if not multiprocessing.parent_process().is_alive():  # it was killed before
        os._exit(1)
    os.chdir(surroundings.folder)
    os.environ.clear()
    os.environ.update(surroundings.env)
    time.tzset()
    for stream, path in ((1, surroundings.out), (2, surroundings.err)):
        if path:
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(file, stream)
            os.close(file)
    sys.stdout = sys.__stdout__ = os.fdopen(1, "w", buffering=1, closefd=False)
    sys.stderr = sys.__stderr__ = os.fdopen(
        2, "w", buffering=1, closefd=False, errors="backslashreplace"
    )


def _reset_libraries() -> None:
    """Give PyTorch and NumPy the threads and random seeds of a new process."""
    import numpy as np
    import torch

    if os.environ.get("OMP_NUM_THREADS", "").isdigit():
        torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    torch.default_generator.seed()
    np.random.seed()


def _print_traceback(error: Exception, script: str) -> None:
    """Print what Python prints for an uncaught exception, from the script's own frames on."""
    frames = error.__traceback__
    while frames and frames.tb_frame.f_code.co_filename != script:
        frames = frames.tb_next
    sys.excepthook(type(error), error.with_traceback(frames), frames)
