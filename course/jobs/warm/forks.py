"""Processes that are forked, and yet run as if they were started anew."""

from __future__ import annotations

import atexit
import builtins
import ctypes
import gc
import os
import signal
import subprocess
import sys
import threading
import time
import types
import warnings
import weakref
from collections.abc import Callable, Iterable
from importlib.machinery import SourceFileLoader
from itertools import takewhile
from pathlib import Path
from types import TracebackType

from course.jobs.warm import fresh
from course.jobs.warm.fresh import Process

LAST = "the last module before a program's own"  # a mark among Python's modules
_taken_over: list[int] = []  # forks that this process comes from, itself the last one


class Forked:
    """A forked child of this process, with what `subprocess.Popen` offers to watch one.

    Attributes:
        returncode: None while it runs; -N when signal N ended it.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit code, as soon as the process has ended."""
        return self._look(os.WNOHANG)

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended: its exit code.

        Raises:
            subprocess.TimeoutExpired: it has not, after so many seconds.
        """
        if timeout is None:
            return self._look(0)
        deadline = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
            time.sleep(0.01)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless the process has ended: its number may be another's by now."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def _look(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, options)
            except ChildProcessError:  # somebody else has taken its code; Popen says 0 too
                self.returncode = 0
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def fork(body: Callable[[], None], process: Process, *, keep: Iterable[int] = ()) -> Forked:
    """Run `body` in a fork that is as a new process.

    Args:
        keep: descriptors left open in it.

    Raises:
        OSError: the folder it should start in is gone, or no process can be had.
    """
    os.stat(process.cwd)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()  # or the fork would print once more what waits there
    gc.freeze()  # the fork looks for no garbage in what it takes over: that would copy its pages
    gc.collect()  # so would what Python keeps for later use, and gives back with the first look
    with warnings.catch_warnings():  # of Python 3.12, where there are threads: OpenBLAS's, which
        warnings.simplefilter("ignore", DeprecationWarning)  # ends them before a fork
        try:
            pid = os.fork()
        except OSError:
            _thaw()
            raise
    if pid:
        _thaw()
        return Forked(pid)
    try:
        _taken_over.append(os.getpid())
        fresh.become(process, keep)
        _leave_finalizers()
        run_to_end(body)
    except BaseException as error:
        _tell(error, error.__traceback__)
    finally:
        os._exit(1)  # whatever comes, the parent's own work is not done twice


def _leave_finalizers() -> None:
    # At exit they would tidy up what is the parent's. PyTorch alone has two hundred, which take its
    # operators apart one by one, in pages that would be copied for it.
    for taken_over in [*weakref.finalize._registry]:  # Python offers no other way to them
        taken_over.atexit = False


def _thaw() -> None:
    # What a fork took over stays frozen. To ask Python whether something is takes 0.1 s: it counts.
    if not _taken_over:
        gc.unfreeze()


def run_to_end(body: Callable[[], None]) -> None:
    """Call `body` as Python does a whole program, and end this process as Python does.

    The frames beneath are not unwound: they are the parent's. But threads are joined, exit
    handlers called, what is new is finalized and streams are flushed.
    """
    code = 0
    sys.modules[LAST] = types.ModuleType(LAST)  # behind it lies what comes from here on
    try:
        body()
    except SystemExit as end:
        code = end.code
        if code is not None and not isinstance(code, int):
            print(code, file=sys.stderr)
            code = 1
    except BaseException as error:
        _tell(error, _without_ours(error.__traceback__))
        if isinstance(error, KeyboardInterrupt):
            _run_exit_handlers()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        code = 1
    _run_exit_handlers()
    _finalize()
    os._exit((code or 0) & 0xFF)


def _tell(error: BaseException, traceback: TracebackType | None) -> None:
    error.__traceback__ = traceback
    try:
        sys.excepthook(type(error), error, traceback)  # torch sets one, with the rank in it
    except BaseException as other:
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(other), other, other.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, traceback)


def _without_ours(traceback: TracebackType | None) -> TracebackType | None:
    """A traceback without the frames of this module that it begins with."""
    while traceback and traceback.tb_frame.f_globals is globals():
        traceback = traceback.tb_next
    return traceback


def _run_exit_handlers() -> None:
    threading._shutdown()
    atexit._run_exitfuncs()
    _flush()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream and not stream.closed:
            stream.flush()


def _finalize() -> None:
    """Finalize the program and the modules that it imported itself, so that files are written.

    Python would take all modules apart. With PyTorch among them, used or not, it takes a second.
    """
    # To look at the names of all, three thousand, would copy their pages.
    new = []
    if LAST in sys.modules:  # or nobody knows where those of the program begin
        new = [*takewhile(lambda name: name != LAST, reversed(sys.modules))]
    for module in map(sys.modules.pop, dict.fromkeys(["__main__", *new])):
        names = vars(module) if isinstance(module, types.ModuleType) else {}
        for name in names.keys() - {"__builtins__"}:  # each alone: a file goes before its buffer
            names[name] = None
    gc.collect()
    _flush()
    ctypes.CDLL(None).fflush(None)  # what C libraries print waits in a buffer of its own


def execute(script: Path, path: list[str], before: Callable[[], None]) -> None:
    """What `python script` does: its text is the module `__main__`, its folder comes first.

    Args:
        path: where modules are looked for after that.
        before: called first.
    """
    before()
    name = str(script)
    sys.argv[:] = [name]
    sys.path[:] = [str(script.parent), *path]
    sys.stdin, sys.stdout, sys.stderr = sys.__stdin__, sys.__stdout__, sys.__stderr__
    main = types.ModuleType("__main__")
    vars(main).update(
        __file__=name,
        __cached__=None,
        __builtins__=builtins,
        __annotations__={},
        __loader__=SourceFileLoader("__main__", name),
    )
    sys.modules["__main__"] = main
    exec(compile(script.read_bytes(), name, "exec", dont_inherit=True), vars(main))
