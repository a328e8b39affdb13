"""Give turns to the runs of a group: one computes while the others wait.

A job whose runs are compared trains them at the same time, in alternating blocks of steps.
Anything else that the machine does then affects all of them, and cancels out in the ratio of
neighbouring blocks. The order within a turn is random, so that no periodic load favours one run,
and the ratio's interval (`trainspeed.ratio.centre`) covers the noise that remains. This module is
the supervisor's side; `course.training.turns` is the training process's side.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext

import numpy as np

from course.config import Config
from course.jobs.memory_check import why_not_together
from course.jobs.processes import POLL_S
from course.runs.files import write_atomically
from course.runs.ratio import NO_TURNS
from course.runs.run import Run
from course.training.turns import NO_MORE
from trainspeed.ratio import BLOCK_S, LEAST_TURNS, is_sure


def start_turns(run: Run, context: BaseContext) -> Conductor | None:
    """Decide whether the runs of a job take turns; the supervisor of rank 0 conducts them.

    Args:
        run: the job's first run.
        context: starts processes.

    Returns:
        What connects a training process with the conductor; None: the runs take no turns.
    """
    if len(run.together) == 1:
        return None
    active = [member for member in run.together if not member.record]
    try:
        reason = why_not_together(active, context)
        if not reason:
            conductor = Conductor(active)
            conductor.start()
            return conductor
    except Exception as error:  # any error: the runs can run one after another
        reason = f"{type(error).__name__}: {error}"
    with contextlib.suppress(OSError):  # a full disk
        write_atomically(run.job.folder / NO_TURNS, json.dumps({"why_not": reason}))
    return None


@dataclass
class Member:
    """A run of the group, as the conductor knows it."""

    run: Run
    config: Config
    connection: Connection | None = None  # to its rank 0, which passes on what it receives
    granted_steps: int = 0  # in all turns so far
    images_per_s: list[float] = field(default_factory=list)  # of each block
    fastest_step_s: float = math.inf
    measured_s: float = 0.0
    is_gone: bool = False
    has_left: bool = False  # early: it failed, or disconnected with steps left

    @property
    def is_ready(self) -> bool:
        """Whether it has started, or never will."""
        return self.is_gone or self.connection is not None

    @property
    def steps_left(self) -> int:
        """The number of steps that it must still be granted."""
        return self.config.epochs * self.config.steps - self.granted_steps

    def shortest_block(self) -> int:
        """Return the number of steps in BLOCK_S, or fewer so that LEAST_TURNS blocks fit."""
        wanted = math.ceil(BLOCK_S / self.fastest_step_s)
        most = self.config.epochs * self.config.steps - self.config.warmup_steps
        return max(1, min(wanted, most // LEAST_TURNS))

    def add(self, step_times: list[float], turn: int) -> None:
        """Record the seconds of each step in a block, as rank 0 reports them."""
        if not step_times:
            return
        self.fastest_step_s = min(self.fastest_step_s, step_times[-1])
        if turn:
            seconds = sum(step_times)
            self.measured_s += seconds
            self.images_per_s.append(self.config.batch_size * len(step_times) / seconds)


class Conductor:
    """Decides whose turn it is, in a thread of the supervisor of rank 0."""

    def __init__(self, runs: Sequence[Run]) -> None:
        self._by_folder = {str(run.folder): Member(run, run.config) for run in runs}
        self.members = [*self._by_folder.values()]
        self._is_closing = False
        self._last_turn = 0

    def start(self) -> None:
        """Begin to conduct."""
        threading.Thread(target=self._conduct, daemon=True).start()

    def connect(self, run: Run) -> Connection:
        """Return a connection for a run's rank 0, which this process must then close."""
        ours, theirs = Pipe()
        self._by_folder[str(run.folder)].connection = ours
        return theirs

    def end(self, run: Run, status: str) -> None:
        """Note that this run's processes have ended, perhaps before they requested a turn."""
        if member := self._by_folder.get(str(run.folder)):
            member.has_left |= status != "ok"
            member.is_gone = True

    def _conduct(self) -> None:
        try:
            while not all(member.is_ready for member in self.members):
                time.sleep(POLL_S)
            order = random.Random(" ".join(self._by_folder))
            for turn in itertools.count():
                if turn == 1:
                    self._plan()
                for member in order.sample(self.members, len(self.members)):
                    if not member.is_gone:
                        self._grant_block(member, turn)
                if not self._playing() or self._is_enough():
                    break
            self._is_closing = True
            for member in self.members:
                self._send(member, NO_MORE, 0)
            while any(member.connection for member in self.members):
                self._receive()
        finally:  # a waiting member notices that the turns are over
            self._is_closing = True
            for member in self.members:
                if member.connection:
                    member.connection.close()

    def _playing(self) -> list[Member]:
        """Return the members that get further turns: none, if only repetitions are left."""
        members = [member for member in self.members if not member.is_gone]
        return members if any(not member.run.is_repeat for member in members) else []

    def _grant_block(self, member: Member, turn: int) -> None:
        """Let a member compute a block of steps, and wait until it has finished it."""
        steps = self._block(member, turn) if turn else member.config.warmup_steps
        if not steps:
            return
        member.granted_steps += steps
        self._send(member, turn, steps)
        is_due = True
        while is_due and member.connection:
            for reporting, step_times in self._receive():
                if reporting is member:
                    member.add(step_times, turn)
                    is_due = False

    def _block(self, member: Member, turn: int) -> int:
        """Return a member's steps in this turn: all members finish theirs in the same turn."""
        if member.config.budget_s:  # the budget ends the turns, even if steps are left
            return member.shortest_block()
        return math.ceil(member.steps_left / max(1, self._last_turn - turn + 1))

    def _plan(self) -> None:
        """Choose the last turn, after the warm-up; a budget may end the turns earlier."""
        turns = [member.steps_left // member.shortest_block() for member in self._playing()]
        self._last_turn = min(turns, default=0)

    def _send(self, member: Member, turn: int, steps: int) -> None:
        left = [member.run.name for member in self.members if member.has_left]
        if member.connection:
            with contextlib.suppress(OSError):  # it has just ended; the next receive shows it
                member.connection.send((turn, steps, left))

    def _receive(self) -> list[tuple[Member, list[float]]]:
        """Return the blocks that were reported just now; drop processes that have ended."""
        owners = {member.connection: member for member in self.members if member.connection}
        reported = []
        for connection in wait([*owners], timeout=POLL_S):
            member = owners[connection]
            try:
                reported.append((member, connection.recv()))
            except (EOFError, OSError):
                connection.close()
                if member.connection is connection:  # and no new process has connected
                    member.connection = None
                member.is_gone = True
                # Tell the others now, because its processes may take a while to end.
                member.has_left |= member.steps_left > 0 and not self._is_closing
        return reported

    def _is_enough(self) -> bool:
        """Return whether all ratios to the first run are certain, or the budgets are used up."""
        first, *others = self._playing()
        budgets = [member.config.budget_s for member in (first, *others)]
        if not all(budgets):
            return False
        if sum(member.measured_s for member in (first, *others)) >= sum(budgets):
            return True
        if len(first.images_per_s) < LEAST_TURNS:
            return False
        return all(is_sure(_ratios(member, first)) for member in others)


def _ratios(member: Member, first: Member) -> np.ndarray:
    pairs = list(zip(member.images_per_s, first.images_per_s))  # one may be a block ahead
    return np.array([speed / base for speed, base in pairs])
