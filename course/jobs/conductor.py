"""Gives out turns to the runs of a group: one computes, the others wait.

A job whose runs are to be compared trains them at the same time, block of steps by block of
steps. Whatever the machine does meanwhile then hits all of them, and the ratio of neighbouring
blocks is free of it. Who is first in a turn is a matter of chance: a rhythm of the machine's own
cannot favour one of them, and the interval of the ratio (`course.runs.ratio.centre`) may be
believed however disturbances follow each other. This is the supervisor's end;
`course.training.turn` is the training process's.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import secrets
import socket
import struct
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
    wait,
)
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from course.jobs.processes import POLL_S, usable_cores
from course.runs.files import write_atomically
from course.runs.ratio import LEAST_TURNS, is_sure
from course.runs.run import Run
from course.training.turn import NO_MORE

BLOCK_S = 0.5  # a block is at least so long: shorter ones measure how a process wakes up
LOOK_S = 0.05  # how long the cores are looked at before a block
PATIENCE_S = 4.0  # and how long a neighbour's burst of work is waited for
BUSY = 0.4  # cores that others use; less is what any machine does by itself
DISTURBED = 0.15  # cores that others used during a block, and it is repeated
AGAIN = 3  # times at most
IN_VAIN = 2  # so often in a row, and it is no burst: whoever is there stays
PROOF_S = 5  # in which a connection must send what proves that it belongs to a member
MOST_UNPROVED = 64  # connections at a time that have not done so yet: further ones are closed
WORK = ("user", "nice", "system", "irq", "softirq", "steal")  # what a core's time goes to


@dataclass
class ConductedRun:
    """A run of the group, as the conductor knows it."""

    name: str
    ranks: int
    is_repeat: bool = False  # measured again only so that another run has something beside it
    connections: dict[int, Connection] = field(default_factory=dict)  # by rank
    asked: dict[str, Any] = field(default_factory=dict)  # what it said of itself
    given: int = 0  # steps, in all turns so far
    images_per_s: list[float] = field(default_factory=list)  # a block each
    fastest_step_s: float = math.inf
    measured_s: float = 0.0
    is_gone: bool = False
    has_left: bool = False  # before its time: it failed, or hung up with steps to go

    @property
    def is_ready(self) -> bool:
        """Have all its ranks asked for their first turn, or will never?"""
        return self.is_gone or len(self.connections) == self.ranks

    @property
    def steps_left(self) -> int:
        """How many steps it has still to be given."""
        return self.asked["steps"] - self.given

    def shortest_block(self) -> int:
        """Steps of a block of BLOCK_S; fewer, where its steps would not last for LEAST_TURNS."""
        wanted = math.ceil(BLOCK_S / self.fastest_step_s)
        most = (self.asked["steps"] - self.asked["warmup_steps"]) // LEAST_TURNS
        return max(1, min(wanted, most))

    def took(self, block: dict[str, float], turn: int, again: int) -> None:
        """Note what its rank 0 says of a block; one that was repeated takes the place of it."""
        if block["steps"]:
            self.fastest_step_s = min(self.fastest_step_s, block["last_s"])
        if block["steps"] and turn:
            if again:
                self.images_per_s.pop()
            else:
                self.measured_s += block["seconds"]
            self.images_per_s.append(self.asked["batch_size"] * block["steps"] / block["seconds"])


class Conductor:
    """Decides whose turn it is, in a thread of the job's first supervisor."""

    def __init__(self, runs: Sequence[Run], host: str) -> None:
        self._by_folder = {
            str(run.folder): ConductedRun(run.name, run.launched["gpus"], run.is_repeat)
            for run in runs
        }
        self.members = [*self._by_folder.values()]
        self._key = secrets.token_bytes(16)
        self._listener = Listener((host, 0), backlog=64)
        self._unproved = threading.Semaphore(MOST_UNPROVED)
        self._is_closing = False
        self._last_turn = 0
        self._waited_in_vain = 0
        self._lost_s = 0.0  # waited for neighbours, or spent on blocks that they disturbed

    def publish(self, path: Path) -> None:
        """Write where the members reach this conductor; for this user's eyes only."""
        host, port = self._listener.address
        text = json.dumps({"host": host, "port": port, "key": self._key.hex()})
        write_atomically(path, text, mode=0o600)

    def start(self) -> None:
        """Conduct, until no member is left to conduct."""
        for work in (self._admit, self._conduct):
            threading.Thread(target=work, daemon=True).start()

    def is_over(self, run: Run, status: str) -> None:
        """The processes of this run have ended, perhaps before they asked for a turn."""
        member = self._by_folder[str(run.folder)]
        member.has_left |= status != "ok"
        member.is_gone = True

    def _admit(self) -> None:
        """Take in the members' processes as they connect.

        Each connection has a thread until it has proved that it belongs to a member, because a
        stranger may send nothing. A member that is refused in between tries again.
        """
        while not self._is_closing:
            with contextlib.suppress(OSError):  # the listener or the connection was closed
                connection = self._listener.accept()
                if self._unproved.acquire(blocking=False):
                    threading.Thread(target=self._welcome, args=[connection], daemon=True).start()
                else:
                    connection.close()

    def _welcome(self, connection: Connection) -> None:
        try:
            self._prove(connection)
        finally:
            self._unproved.release()

    def _prove(self, connection: Connection) -> None:
        try:
            _set_timeout(connection, PROOF_S)
            deliver_challenge(connection, self._key)
            answer_challenge(connection, self._key)
            asked = connection.recv()
            member = self._by_folder[asked["folder"]]
            _set_timeout(connection, 0)  # none: a member computes for as long as it likes
        except (AuthenticationError, EOFError, OSError, KeyError):
            connection.close()
            return
        member.asked = asked
        member.connections[asked["rank"]] = connection

    def _conduct(self) -> None:
        try:
            while not all(each.is_ready for each in self.members):
                time.sleep(POLL_S)
            chance = random.Random(" ".join(self._by_folder))
            for turn in itertools.count():
                if turn == 1:
                    self._plan()
                for member in chance.sample(self.members, len(self.members)):
                    if not member.is_gone:
                        self._give(member, turn)
                if not self._playing() or self._is_enough():
                    break
            self._is_closing = True
            for member in self.members:
                self._tell(member, NO_MORE, 0)
            while any(member.connections for member in self.members):
                self._listen()
        finally:  # whoever waits sees that nobody conducts any more
            self._is_closing = True
            self._listener.close()
            for member in self.members:
                for connection in member.connections.values():
                    connection.close()

    def _playing(self) -> list[ConductedRun]:
        """Those who are to have further turns: none, where only repetitions are left."""
        there = [each for each in self.members if not each.is_gone]
        return there if any(not each.is_repeat for each in there) else []

    def _give(self, member: ConductedRun, turn: int) -> None:
        """Let a member compute a block of steps, and wait until all its ranks are through.

        Where a budget ends the turns, there is time to have it undisturbed.
        """
        for again in range(AGAIN + 1):
            steps = self._block(member, turn) if turn else member.asked["warmup_steps"]
            if not steps:
                return
            is_picky = bool(turn and member.asked["budget_s"]) and self._has_patience()
            began = time.monotonic()
            if is_picky:
                self._let_pass(member)
            member.given += steps
            self._tell(member, turn, steps, again)
            others = self._hear(member, turn, again)
            is_calm = others <= max(DISTURBED, self._spare(member))
            # Steps that are kept for the turns that a ratio needs are not there to be repeated.
            needed = steps * (1 + max(0, LEAST_TURNS - len(member.images_per_s)))
            if is_calm:  # who was there has left, perhaps
                self._waited_in_vain = 0
            if not is_picky or member.is_gone or is_calm or member.steps_left < needed:
                return
            self._lost_s += time.monotonic() - began
        self._waited_in_vain += 1  # a pause before each, and none lasted

    def _has_patience(self) -> bool:
        """Shall a neighbour be waited for, and what it disturbed be done again?"""
        budget_s = sum(each.asked["budget_s"] for each in self._playing())
        return self._waited_in_vain < IN_VAIN and self._lost_s < budget_s

    def _hear(self, member: ConductedRun, turn: int, again: int) -> float:
        """Wait until all ranks of a member are through: how many cores others used meanwhile."""
        before, began, own = _core_seconds(), time.monotonic(), 0.0
        due = set(member.connections.values())
        while due & set(member.connections.values()):
            for connection, block in self._listen():
                due.discard(connection)
                own += block["cpu_s"]
                if connection is member.connections.get(0):
                    member.took(block, turn, again)
        return (_core_seconds() - before - own) / max(LOOK_S, time.monotonic() - began)

    def _spare(self, member: ConductedRun) -> int:
        """Cores of this machine that others may use without taking any from the member."""
        there = min(len(usable_cores()), psutil.cpu_count(logical=False) or math.inf)
        return int(there) - member.ranks * member.asked["cores"]

    def _let_pass(self, member: ConductedRun) -> None:
        """While none of the group computes, whoever is busy is a neighbour: wait for a pause."""
        most, began = max(BUSY, self._spare(member)), time.monotonic()
        while busy_cores() > most:
            if time.monotonic() > began + PATIENCE_S:
                self._waited_in_vain += 1
                break
        self._lost_s += time.monotonic() - began - LOOK_S

    def _block(self, member: ConductedRun, turn: int) -> int:
        """How many steps a member gets: all are to be through with theirs in the same turn."""
        if member.asked["budget_s"]:  # which ends the turns, whoever has steps left
            return member.shortest_block()
        return math.ceil(member.steps_left / max(1, self._last_turn - turn + 1))

    def _plan(self) -> None:
        """After the warm-up: in which turn all are through, where no budget ends them before."""
        turns = [each.steps_left // each.shortest_block() for each in self._playing()]
        self._last_turn = min(turns, default=0)

    def _tell(self, member: ConductedRun, turn: int, steps: int, again: int = 0) -> None:
        left = [each.name for each in self.members if each.has_left]
        for connection in member.connections.values():
            with contextlib.suppress(OSError):  # it has just ended, as will be heard
                connection.send({"turn": turn, "steps": steps, "again": again, "left": left})

    def _listen(self) -> list[tuple[Connection, dict[str, float]]]:
        """The blocks that were reported just now; processes that have ended are let go."""
        owners = {
            connection: (member, rank)
            for member in self.members
            for rank, connection in member.connections.items()
        }
        reported = []
        for connection in wait([*owners], timeout=POLL_S):
            try:
                reported.append((connection, connection.recv()))
            except (EOFError, OSError):
                member, rank = owners[connection]
                del member.connections[rank]
                connection.close()
                member.is_gone = member.is_gone or not member.connections
                # Its processes may take a while to end: the others need not wait to be told.
                member.has_left |= member.steps_left > 0 and not self._is_closing
        return reported

    def _is_enough(self) -> bool:
        """Are all ratios to the first sure, or the budgets used up? Never without budgets."""
        first, *others = self._playing()
        budgets = [each.asked["budget_s"] for each in (first, *others)]
        if not all(budgets):
            return False
        if sum(each.measured_s for each in (first, *others)) >= sum(budgets):
            return True
        if len(first.images_per_s) < LEAST_TURNS:
            return False
        return all(is_sure(_ratios(each, first)) for each in others)


def _set_timeout(connection: Connection, seconds: int) -> None:
    """Let reading and writing fail after some seconds; 0: never."""
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))


def busy_cores() -> float:
    """How many of the cores that this process may use compute, just now, for whomever."""
    before, began = _core_seconds(), time.monotonic()
    time.sleep(LOOK_S)
    return (_core_seconds() - before) / (time.monotonic() - began)


def _core_seconds() -> float:
    """How long these cores have computed so far, or the host of a virtual machine took them."""
    times = psutil.cpu_times(percpu=True)
    cores = [core for core in usable_cores() if core < len(times)]  # a container may show fewer
    return sum(getattr(times[core], kind, 0.0) for core in cores for kind in WORK)


def _ratios(member: ConductedRun, first: ConductedRun) -> np.ndarray:
    both = list(zip(member.images_per_s, first.images_per_s))  # one may be a block ahead
    return np.array([own / base for own, base in both])
