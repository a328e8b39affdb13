"""The training process's side of runs that take turns: it computes a block of steps at a time.

The other side is `course.jobs.conductor`, in the job's supervisor.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from datetime import timedelta
from functools import cached_property
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from course.runs import failures
from course.runs.run import TAKES_TURNS, WAITING_FILE
from trainspeed.workers import workers_stopped

FOREVER = timedelta(days=365)  # no limit for the turns of others; the run has its time limit
PORT_OFFSET = 500  # from the port of a job's first process group; others are closer to it
WAIT_S = 1.0  # the progress line shows longer waits for the next turn
NO_MORE = -1  # the number of the turn if there are no more turns
connection: Connection | None = None  # of rank 0 to the conductor


def join(rank: int, world_size: int, folder: Path | None) -> Turns | None:
    """Return the turns of this process's run; None if it takes none."""
    takes_turns = os.environ.get(TAKES_TURNS) if rank else connection
    return Turns(rank, world_size, folder) if takes_turns else None


class Turns:
    """The turns of a run in a group: it computes blocks of steps, when the conductor allows it.

    The conductor's messages go to rank 0, which passes them on to the other ranks, and reports a
    block when all have finished it. They exchange this in a store, as PyTorch's ranks do.

    Between blocks, this process waits and its DataLoader workers are stopped, so that they neither
    slow down the run whose turn it is nor prepare batches in that run's time.

    Attributes:
        number: the current turn; 0: warm-up; None: before the first.
        left: members of the group that ended before the others.
    """

    def __init__(self, rank: int, world_size: int, folder: Path) -> None:
        self.number: int | None = None
        self.left: list[str] = []
        self._steps_left = self._blocks = 0
        self._rank, self._world_size = rank, world_size
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
            with workers_stopped():
                if self.number is not None:
                    self._gather("end")
                    if self._rank == 0:
                        connection.send(step_times)
                self._blocks += 1
                self.number, self._steps_left, self.left = self._receive()
                if self.is_over:  # the store may be in rank 0, which must not end before
                    self._gather("read")
        except (EOFError, OSError, RuntimeError) as error:
            raise RuntimeError(f"{failures.TURNS_ENDED}: launch again") from error

    @cached_property
    def _store(self) -> Any:
        from torch.distributed import TCPStore

        # On one machine, the supervisor has a store. On Slurm, a process group has one, but
        # not every script has a process group, so rank 0 opens another.
        is_shared = "TORCHELASTIC_USE_AGENT_STORE" in os.environ
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        return TCPStore(
            address,
            port if is_shared else port + PORT_OFFSET,
            is_master=self._rank == 0 and not is_shared,
            wait_for_workers=False,
            timeout=FOREVER,
        )

    def _gather(self, event: str) -> None:
        """Let rank 0 wait until each rank has come here."""
        keys = [f"turns/{self._blocks}/{event}/{rank}" for rank in range(self._world_size)]
        if self._rank:
            self._store.set(keys[self._rank], "")
        elif keys[1:]:
            self._store.wait(keys[1:])

    def _receive(self) -> Any:
        """Receive the conductor's next message."""
        key = f"turns/{self._blocks}"
        if self._rank:
            return json.loads(self._store.get(key))
        message = self._receive_from_conductor()
        if self._world_size > 1:
            self._store.set(key, json.dumps(message))
        return message

    def _receive_from_conductor(self) -> Any:
        """Receive the next message. During a long wait, a file shows the wait."""
        if connection.poll(WAIT_S):
            return connection.recv()
        with suppress(OSError):  # a full disk
            self._waiting.touch()
        try:
            return connection.recv()
        finally:
            self._waiting.unlink(missing_ok=True)

    def step(self) -> None:
        """Count a step."""
        self._steps_left -= 1
