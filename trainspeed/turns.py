"""Turns: of several that run at the same time, one computes a block of iterations, the rest wait.

Whatever else the machine does then affects all of them, and cancels out in the ratio of
neighbouring blocks. Their order is random, so that no periodic load favours one.
"""

from __future__ import annotations

import json
import math
import os
import random
import signal
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Client, Connection
from typing import Any

import numpy as np

from trainspeed.ratio import BLOCK_S, is_sure
from trainspeed.workers import workers_stopped

ENDED = "ended.txt"  # in the plan's folder: why a training process ended itself
WARM_UP = 3  # iterations of each, before the first turn


@dataclass(frozen=True)
class Block:
    """A block of iterations; `samples` are those of a usual iteration, 0 if unknown."""

    iterations: int
    seconds: float
    samples: float = 0.0

    @property
    def per_s(self) -> float:
        """Iterations per second."""
        return self.iterations / self.seconds


@dataclass
class Side:
    """One of those that are compared."""

    name: str
    blocks: list[Block] = field(default_factory=list)  # by turn
    iteration_s: float = 0.0  # as far as known: how long one takes

    def compute(self, iterations: int) -> Block:
        """Compute a block.

        Raises:
            SideEnded: it ended before the block's end.
        """
        raise NotImplementedError

    def warm_up(self) -> None:
        """Compute until the time of an iteration is known."""
        count, block = WARM_UP, self.compute(WARM_UP)
        while block.seconds < BLOCK_S / 2:
            count = min(10 * count, math.ceil(BLOCK_S / max(block.seconds / count, 1e-9)))
            block = self.compute(count)
        self.iteration_s = block.seconds / count

    def measure(self, least_s: float = 0.0) -> Block:
        """Compute a block of at least so many seconds and BLOCK_S, as far as known before."""
        wanted_s = max(least_s, BLOCK_S)
        block = self.compute(max(1, math.ceil(wanted_s / self.iteration_s)))
        self.iteration_s = min(self.iteration_s, block.seconds / block.iterations)
        return block


class SideEnded(Exception):
    """One of the sides has ended, for the `reason`; there are no more turns."""

    def __init__(self, side: Side, reason: str) -> None:
        super().__init__(reason)
        self.side, self.reason = side, reason


class Function(Side):
    """A function that is called in this process."""

    def __init__(self, name: str, call: Callable[[], Any]) -> None:
        super().__init__(name)
        self._call = call

    def compute(self, iterations: int) -> Block:
        synchronize()
        begin = time.perf_counter()
        for _ in range(iterations):
            self._call()
        synchronize()
        return Block(iterations, time.perf_counter() - begin)


def take_turns(
    sides: Sequence[Side],
    is_over: Callable[[], str],
    order: random.Random,
    on_turn: Callable[[], None] = lambda: None,
) -> str:
    """Let the sides compute in turns until `is_over` returns why, and return that.

    `on_turn` is called after each turn.
    """
    try:
        for side in sides:
            side.warm_up()
        while not (reason := is_over()):
            blocks = {}
            for side in order.sample(sides, len(sides)):
                blocks[side.name] = side.measure()
            for side in sides:
                side.blocks.append(blocks[side.name])
            on_turn()
    except SideEnded as ended:
        return ended.reason
    return reason


def ratios(side: Side, base: Side) -> np.ndarray:
    """Return the ratio of iterations per second of two sides in each turn."""
    return np.array([a.per_s / b.per_s for a, b in zip(side.blocks, base.blocks)])


def is_enough(sides: Sequence[Side]) -> bool:
    """Return whether the ratios of all sides to the first are certain."""
    return all(is_sure(ratios(side, sides[0])) for side in sides[1:])


# The training process's side.


class TurnTaker:
    """What a training process does at the end of each iteration: perhaps wait for its turn.

    Each rank connects, and counts the same iterations: all of them wait at the same boundary. If
    only rank 0 did, the others would compute up to the next collective operation, and wait there
    for the turns of others, with a kernel that keeps a part of the GPU busy.
    """

    def __init__(
        self, address: str, folder: str, report: Callable[[], dict[str, Any]] = dict
    ) -> None:
        self._address, self._folder, self._report = address, folder, report
        self._connection: Connection | None = None
        self._left = 0  # iterations of the current block
        self._begin_s = 0.0
        self._samples: list[int] = []

    def end_iteration(self, rule: str, samples: int) -> None:
        """Count an iteration; at the end of a block, wait for the next one."""
        if self._connection is None:
            self._connection = Client(self._address, "AF_UNIX")
            rank, world_size = rank_and_world_size()
            message: dict[str, Any] = {"folder": self._folder, "rank": rank, "rule": rule}
            message["world_size"] = world_size
        else:
            self._samples.append(samples)
            self._left -= 1
            if self._left > 0:
                return
            synchronize()
            seconds = time.perf_counter() - self._begin_s
            usual = statistics.median_low(self._samples)
            message = {"seconds": seconds, "samples": usual, "rule": rule}
        try:
            with workers_stopped():
                message |= self._report()
                self._connection.send_bytes(json.dumps(message).encode())
                self._left = json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):  # the comparison is over, or its process has ended
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(128 + signal.SIGTERM)
        self._samples = []
        self._begin_s = time.perf_counter()


def rank_and_world_size() -> tuple[int, int]:
    """Return this process's rank, and the number of processes that train together."""
    from torch import distributed

    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))


def synchronize() -> None:
    """Wait until the accelerator has done everything."""
    import torch

    from trainspeed.recorder import device_type

    if device_type() != "cpu":
        torch.accelerator.synchronize()
