"""A training process's part in a group of runs that take turns: it computes when it is told to.

The other end is `course.jobs.conductor`, in the job's supervisor. A run that is alone has `Alone`,
which may always go on.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any, Protocol

import psutil

from course.config import Config
from course.runs.run import FOLDER_VARIABLE, WAITING_FILE

VARIABLE = "COURSE_TURNS"  # of a member's processes: the file with the conductor's address
ADDRESS_S = 120.0  # until the job's first task has written that file, on another node perhaps
WAIT_S = 1.0  # a longer wait for the next turn is shown in the progress line
NO_MORE = -1  # the turn's number where there is none left


class Turn(Protocol):
    """When may a run take its next step?"""

    number: int | None  # of the turn under way; 0: warm-up; None: the run takes no turns
    again: int  # how often the block under way was repeated, since others disturbed it
    left: list[str]  # members of the group that ended before their time

    def is_due(self) -> bool:
        """Is a block of steps over, so that `wait` must be called before the next step?"""
        ...

    def wait(self, block: Block) -> None:
        """Report the block, and come back when the next one may begin, or none will."""
        ...

    def is_over(self, measured_s: float) -> bool:
        """Shall training end here, with so many measured seconds behind it?"""
        ...

    def step(self) -> None:
        """A step is done."""
        ...


@dataclass
class Block:
    """What a run did since its turn began."""

    seconds: float = 0.0  # in its steps
    steps: int = 0
    last_s: float = 0.0  # the last step alone
    cpu_s: float = 0.0  # of all cores, which this process and its workers used meanwhile


class Alone:
    """A run by itself: it ends with its steps, or when its budget of seconds is used up."""

    number: int | None = None
    again = 0

    def __init__(self, budget_s: float) -> None:
        self.left: list[str] = []
        self._budget_s = budget_s

    def is_due(self) -> bool:
        """Nobody waits for it."""
        return False

    def wait(self, block: Block) -> None:
        """Nor does it wait for anybody."""

    def is_over(self, measured_s: float) -> bool:
        """Is the budget used up?"""
        return 0 < self._budget_s <= measured_s

    def step(self) -> None:
        """Nothing to count."""


class Shared:
    """A run among others: it takes blocks of steps, each when the conductor says so.

    Between them the process waits and its DataLoader workers stand still: neither may take time
    from the run whose turn it is, nor prepare batches at its expense.
    """

    def __init__(
        self, connection: Connection, config: Config, folder: str, rank: int, cores: int
    ) -> None:
        self._connection = connection
        self._steps_left = 0
        self.number: int | None = None
        self.again = 0
        self.left: list[str] = []
        self._cpu_s = 0.0  # used before this block
        self._waiting = Path(folder) / WAITING_FILE
        self._waiting.unlink(missing_ok=True)  # of a process that was killed
        connection.send(
            {
                "folder": folder,
                "rank": rank,
                "batch_size": config.batch_size,
                "warmup_steps": config.warmup_steps,
                "steps": config.epochs * config.steps,
                "budget_s": config.budget_s,
                "cores": cores,
            }
        )

    def is_due(self) -> bool:
        """Are the steps done that were given?"""
        return self._steps_left == 0

    def wait(self, block: Block) -> None:
        """Report the block, and wait for the next one.

        Raises:
            RuntimeError: the conductor is gone.
        """
        if self.number == NO_MORE:
            return
        try:
            with _workers_halted():
                if self.number is not None:
                    block.cpu_s = _cpu_seconds() - self._cpu_s
                    self._connection.send(vars(block))
                told = self._receive()
        except (EOFError, OSError) as error:
            raise RuntimeError("what gives out the turns has ended: launch again") from error
        self.number, self.again = told["turn"], told["again"]
        self._steps_left, self.left = told["steps"], told["left"]
        self._cpu_s = _cpu_seconds()

    def _receive(self) -> dict[str, Any]:
        """Receive the conductor's next message. During a long wait, a file shows the wait."""
        if self._connection.poll(WAIT_S):
            return self._connection.recv()
        with suppress(OSError):  # a full disk
            self._waiting.touch()
        try:
            return self._connection.recv()
        finally:
            self._waiting.unlink(missing_ok=True)

    def is_over(self, measured_s: float) -> bool:
        """Was it said that there is no further block?"""
        return self.number == NO_MORE

    def step(self) -> None:
        """One step less of the block."""
        self._steps_left -= 1


def of_this_process(config: Config, rank: int, cores: int = 1) -> Turn:
    """This process's turn: shared, where its job was launched with others to compare with.

    Args:
        cores: that it keeps busy; where others use them, its turn does not begin.

    Raises:
        RuntimeError: the conductor cannot be reached.
    """
    path = os.environ.get(VARIABLE)
    if not path:
        # Several ranks would find at different steps that it is used up, and wait for each other.
        several = int(os.environ.get("WORLD_SIZE", 1)) > 1
        return Alone(0.0 if several else config.budget_s)
    deadline = time.monotonic() + ADDRESS_S
    while True:
        try:
            told = json.loads(Path(path).read_text())
            address = (told["host"], told["port"])
            connection = Client(address, authkey=bytes.fromhex(told["key"]))
            return Shared(connection, config, os.environ[FOLDER_VARIABLE], rank, cores)
        except (OSError, ValueError, EOFError) as error:  # not there yet, or of an earlier attempt
            if time.monotonic() > deadline:
                raise RuntimeError(f"nobody gives out the turns ({path}): {error}") from error
            time.sleep(0.05)


def _cpu_seconds() -> float:
    """What all threads of this process and of its workers have computed so far."""
    used = time.process_time()
    for each in multiprocessing.active_children():
        with suppress(psutil.Error):  # it ended just now
            times = psutil.Process(each.pid).cpu_times()
            used += times.user + times.system
    return used


@contextmanager
def _workers_halted() -> Iterator[None]:
    workers = [each.pid for each in multiprocessing.active_children() if each.pid]
    _signal(workers, signal.SIGSTOP)
    try:
        yield
    finally:
        _signal(workers, signal.SIGCONT)


def _signal(processes: list[int], number: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:  # it ended meanwhile
            continue
