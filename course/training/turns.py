"""The training process's side of runs that take turns: it computes a block of steps at a time.

The other side is `course.jobs.conductor`, in the job's supervisor.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from course.runs import failures
from course.runs.run import WAITING_FILE

WAIT_S = 1.0  # the progress line shows longer waits for the next turn
NO_MORE = -1  # the number of the turn if there are no more turns
connection: Connection | None = None  # of this process to the conductor; None: it takes no turns


class Turns:
    """The turns of a run in a group: it computes blocks of steps, when the conductor allows it.

    Between blocks, this process waits and its DataLoader workers are stopped, so that they neither
    slow down the run whose turn it is nor prepare batches in that run's time.

    Attributes:
        number: the current turn; 0: warm-up; None: before the first.
        left: members of the group that ended before the others.
    """

    def __init__(self, connection: Connection, folder: Path) -> None:
        self.number: int | None = None
        self.left: list[str] = []
        self._connection, self._steps_left = connection, 0
        self._waiting = folder / WAITING_FILE
        self._waiting.unlink(missing_ok=True)  # of a process that was killed

    @property
    def is_due(self) -> bool:
        """Whether a block of steps is complete: call `wait` before the next step."""
        return self._steps_left == 0 and not self.is_over

    @property
    def is_over(self) -> bool:
        """Whether there are no more turns."""
        return self.number == NO_MORE

    def wait(self, step_times: list[float]) -> None:
        """Report the seconds of each step in the block, and wait for the next block.

        Raises:
            RuntimeError: the conductor has ended.
        """
        try:
            with _workers_stopped():
                if self.number is not None:
                    self._connection.send(step_times)
                self.number, self._steps_left, self.left = self._receive()
        except (EOFError, OSError) as error:
            raise RuntimeError(f"{failures.TURNS_ENDED}: launch again") from error

    def _receive(self) -> Any:
        """Receive the conductor's next message. During a long wait, a file shows the wait."""
        if self._connection.poll(WAIT_S):
            return self._connection.recv()
        with suppress(OSError):  # a full disk
            self._waiting.touch()
        try:
            return self._connection.recv()
        finally:
            self._waiting.unlink(missing_ok=True)

    def step(self) -> None:
        """Count a step."""
        self._steps_left -= 1


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
