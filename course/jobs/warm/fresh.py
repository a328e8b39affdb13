"""What a fork of a process does to be like one that was started anew (Linux).

A process that is started anew has the command line, the environment, the folder and the signals
that it was given, open files of its own alone, and chance of its own. A fork has its parent's.
"""

from __future__ import annotations

import ctypes
import importlib
import multiprocessing.process
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

PR_SET_MM, PR_SET_MM_MAP = 35, 14
FIELDS = (
    "start_code",
    "end_code",
    "start_data",
    "end_data",
    "start_brk",
    "brk",
    "start_stack",
    "arg_start",
    "arg_end",
    "env_start",
    "env_end",
    "auxv",
)


_parents: list[dict] = []  # what modules were found by before this fork


@dataclass(frozen=True)
class Process:
    """What a process is started with."""

    command: list[str]
    env: dict[str, str]
    cwd: Path
    session: bool = False  # one of its own
    stdout: int | None = None  # a file descriptor; None: the parent's
    stderr: int | None = None


class _Map(ctypes.Structure):
    """The kernel's `struct prctl_mm_map`: where the parts of a process lie in its memory."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in FIELDS),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    ]


def become(process: Process, keep: Iterable[int] = ()) -> None:
    """Make this fork like a process that was started so; descriptors in `keep` stay open."""
    if process.session:
        os.setsid()
    os.chdir(process.cwd)
    for number, descriptor in ((1, process.stdout), (2, process.stderr)):
        if descriptor is not None:
            os.dup2(descriptor, number)
    _close_all_but({0, 1, 2, *keep})
    _reset_signals()
    os.environ.clear()
    os.environ.update(process.env)
    show(process.command, process.env)
    sys.orig_argv[:] = process.command
    _forget()


def show(command: list[str], env: dict[str, str]) -> None:
    """Let the system (`ps`, psutil) show this command line and environment for this process.

    Both lie in memory of the process; the kernel is told of another place. So a run's processes
    are found by their environment, whether they were forked or not.

    Raises:
        OSError: the kernel does not allow it (built without CONFIG_CHECKPOINT_RESTORE).
    """
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    settings = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in env.items())
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = ctypes.c_void_p
    buffer = ctypes.create_string_buffer(words + settings, len(words) + len(settings))
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(buffer))  # it is read as long as the process lives
    begin = ctypes.addressof(buffer)
    middle, end = begin + len(words), begin + len(words) + len(settings)
    stat = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    code, stack, data = stat[23:25], stat[25:26], stat[42:45]  # as in proc(5), from field 3 on
    parts = _Map(
        *map(int, [*code, *data]),
        libc.sbrk(0),
        *map(int, stack),
        begin,
        middle,
        middle,
        end,
        0,
        0,
        2**32 - 1,
    )
    size = ctypes.sizeof(parts)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(parts), size, 0) != 0:
        error = ctypes.get_errno()
        raise OSError(error, f"a process cannot tell its own name here: {os.strerror(error)}")


def _close_all_but(kept: set[int]) -> None:
    for descriptor in {int(name) for name in os.listdir("/proc/self/fd")} - kept:
        try:
            os.close(descriptor)
        except OSError:  # the one that listed them
            continue


def _reset_signals() -> None:
    """A new process ignores what its parent ignored, and has no handlers but Python's own."""
    for number in signal.valid_signals():
        if signal.getsignal(number) not in (signal.SIG_IGN, signal.SIG_DFL, None):
            wanted = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, wanted)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # as Python has them
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _forget() -> None:
    """Drop what libraries keep of the environment, of the folder and of chance."""
    tempfile.tempdir = None
    time.tzset()
    _parents.append(sys.path_importer_cache)  # to look at each of a thousand would copy its page
    sys.path_importer_cache = {}
    importlib.invalidate_caches()
    multiprocessing.process.ORIGINAL_DIR = os.getcwd()
    multiprocessing.current_process().authkey = os.urandom(32)
    if "numpy" in sys.modules:  # `random` seeds itself after a fork
        sys.modules["numpy"].random.seed()
