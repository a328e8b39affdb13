"""The training process's side of runs that take turns: it computes a block of steps at a time.

The other side is `course.jobs.conductor`, in the job's supervisor.
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
from typing import Any

from course.config import Config
from course.runs.run import FOLDER_VARIABLE, WAITING_FILE

VARIABLE = "COURSE_TURNS"  # names the file with the conductor's address
ADDRESS_S = 120.0  # time for the job's first task to write this file, perhaps on another node
WAIT_S = 1.0  # the progress line shows longer waits for the next turn
NO_MORE = -1  # the number of the turn if there are no more turns
connection: Connection | None = None  # to the conductor on the same node


@dataclass
class Block:
    """The work of a run since its turn began."""

    seconds: float = 0.0  # in its steps
    steps: int = 0
    last_s: float = 0.0  # the last step

    def add(self, step_s: float) -> None:
        """Add a step."""
        self.seconds += step_s
        self.steps += 1
        self.last_s = step_s


class Alone:
    """A run without turns, which ends after its steps, or when its budget of seconds is spent.

    Attributes:
        number: the current turn; 0: warm-up; None: the run takes no turns.
        left: members of the group that ended before the others.
    """

    number: int | None = None

    def __init__(self, budget_s: float = 0.0) -> None:
        self.left: list[str] = []
        self._budget_s = budget_s

    def is_due(self) -> bool:
        """Return whether a block of steps is complete: call `wait` before the next step."""
        return False

    def wait(self, block: Block) -> None:
        """Report the block, and return when the next one may begin, or if there is none."""

    def is_over(self, measured_s: float) -> bool:
        """Return whether training ends here, after this many measured seconds."""
        return 0 < self._budget_s <= measured_s

    def step(self) -> None:
        """Count a step."""


class Shared(Alone):
    """A run in a group: it computes blocks of steps, each when the conductor allows it.

    Between blocks, this process waits and its DataLoader workers are stopped, so that they neither
    slow down the run whose turn it is nor prepare batches in that run's time.
    """

    def __init__(self, connection: Connection, config: Config, folder: str, rank: int) -> None:
        super().__init__()
        self._connection = connection
        self._steps_left = 0
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
            }
        )

    def is_due(self) -> bool:
        return self._steps_left == 0

    def wait(self, block: Block) -> None:
        """Report the block, and wait for the next one.

        Raises:
            RuntimeError: the conductor has ended.
        """
        if self.number == NO_MORE:
            return
        try:
            with _workers_stopped():
                if self.number is not None:
                    self._connection.send(vars(block))
                message = self._receive()
        except (EOFError, OSError) as error:
            raise RuntimeError("the process that controls the turns ended: launch again") from error
        self.number, self.left = message["turn"], message["left"]
        self._steps_left = message["steps"]

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
        return self.number == NO_MORE

    def step(self) -> None:
        self._steps_left -= 1


def of_this_process(config: Config, rank: int) -> Alone:
    """Return this process's turns: Shared if its job was launched with runs to compare.

    Raises:
        RuntimeError: the conductor cannot be reached.
    """
    folder, path = os.environ.get(FOLDER_VARIABLE, ""), os.environ.get(VARIABLE)
    if connection:
        return Shared(connection, config, folder, rank)
    if not path:
        # Several ranks would reach the end of the budget at different steps, and deadlock.
        is_single = int(os.environ.get("WORLD_SIZE", 1)) == 1
        return Alone(config.budget_s if is_single else 0.0)
    deadline = time.monotonic() + ADDRESS_S
    while True:
        try:
            address = json.loads(Path(path).read_text())
            key = bytes.fromhex(address["key"])
            client = Client((address["host"], address["port"]), authkey=key)
            return Shared(client, config, folder, rank)
        except (OSError, ValueError, EOFError) as error:  # missing, or of an earlier attempt
            if time.monotonic() > deadline:
                raise RuntimeError(
                    f"no process controls the turns ({path}: {error}). Launch again"
                ) from error
            time.sleep(0.05)


@contextmanager
def _workers_stopped() -> Iterator[None]:
    workers = [worker.pid for worker in multiprocessing.active_children() if worker.pid]
    _send(workers, signal.SIGSTOP)
    try:
        yield
    finally:
        _send(workers, signal.SIGCONT)


def _send(pids: list[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended in the meantime
            os.kill(pid, number)
