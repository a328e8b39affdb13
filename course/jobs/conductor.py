"""Give turns to the runs of a group: one computes while the others wait.

A job whose runs are compared trains them at the same time, in alternating blocks of steps.
Anything else that the machine does then affects all of them, and cancels out in the ratio of
neighbouring blocks. The order within a turn is random, so that no periodic load favours one run,
and the ratio's interval (`course.runs.ratio.centre`) covers the noise that remains. This module is
the supervisor's side; `course.training.turn` is the training process's side.
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
from multiprocessing import AuthenticationError, Pipe
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

from course.jobs.processes import POLL_S
from course.runs.files import write_atomically
from course.runs.ratio import LEAST_TURNS, is_sure
from course.runs.run import Run
from course.training.turn import NO_MORE

BLOCK_S = 0.5  # minimum length of a block: shorter ones measure how a process wakes up
PROOF_S = 5  # time limit for a connection to prove that it belongs to a member
MOST_UNPROVED = 64  # unproved connections at a time; further ones are closed


@dataclass
class Member:
    """A run of the group, as the conductor knows it."""

    name: str
    ranks: int
    is_repeat: bool = False  # measured again only so that another run can be compared with it
    connections: dict[int, Connection] = field(default_factory=dict)  # by rank
    request: dict[str, Any] = field(default_factory=dict)  # what it sent when it connected
    given_steps: int = 0  # in all turns so far
    images_per_s: list[float] = field(default_factory=list)  # of each block
    fastest_step_s: float = math.inf
    measured_s: float = 0.0
    is_gone: bool = False
    has_left: bool = False  # early: it failed, or disconnected with steps left

    @property
    def is_ready(self) -> bool:
        """Whether all its ranks have connected, or never will."""
        return self.is_gone or len(self.connections) == self.ranks

    @property
    def steps_left(self) -> int:
        """The number of steps that it must still be given."""
        return self.request["steps"] - self.given_steps

    def shortest_block(self) -> int:
        """Return the number of steps in BLOCK_S, or fewer so that LEAST_TURNS blocks fit."""
        wanted = math.ceil(BLOCK_S / self.fastest_step_s)
        most = (self.request["steps"] - self.request["warmup_steps"]) // LEAST_TURNS
        return max(1, min(wanted, most))

    def add(self, block: dict[str, float], turn: int) -> None:
        """Record what rank 0 reports about a block."""
        if block["steps"]:
            self.fastest_step_s = min(self.fastest_step_s, block["last_s"])
        if block["steps"] and turn:
            self.measured_s += block["seconds"]
            rate = self.request["batch_size"] * block["steps"] / block["seconds"]
            self.images_per_s.append(rate)


class Conductor:
    """Decides whose turn it is, in a thread of the supervisor of rank 0.

    Members connect by a pipe from their supervisor, or by TCP from another node.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        self._by_folder = {
            str(run.folder): Member(run.name, run.gpus, run.is_repeat) for run in runs
        }
        self.members = [*self._by_folder.values()]
        self.listens = False
        self._is_closing = False
        self._last_turn = 0

    def start(self) -> None:
        """Start giving turns, in a thread that ends when no member is left."""
        threading.Thread(target=self._conduct, daemon=True).start()

    def connect(self) -> Connection:
        """Return a connection for a member's process, which this process must then close."""
        ours, theirs = Pipe()
        threading.Thread(target=self._welcome, args=[ours], daemon=True).start()
        return theirs

    def listen(self, host: str, path: Path) -> None:
        """Accept connections; write address and key to a file that only this user can read."""
        self.listens = True
        listener, key = Listener((host, 0), backlog=64), secrets.token_bytes(16)
        host, port = listener.address
        text = json.dumps({"host": host, "port": port, "key": key.hex()})
        write_atomically(path, text, mode=0o600)
        threading.Thread(target=self._accept, args=[listener, key], daemon=True).start()

    def end(self, run: Run, status: str) -> None:
        """Note that this run's processes have ended, perhaps before they requested a turn."""
        member = self._by_folder[str(run.folder)]
        member.has_left |= status != "ok"
        member.is_gone = True

    def _accept(self, listener: Listener, key: bytes) -> None:
        """Accept the members' processes as they connect.

        Each connection has a thread until it has proved that it belongs to a member, because any
        other process may connect and send nothing. A member that is refused meanwhile tries again.
        """
        unproved = threading.Semaphore(MOST_UNPROVED)

        def prove(connection: Connection) -> None:
            try:
                _set_timeout(connection, PROOF_S)
                deliver_challenge(connection, key)
                answer_challenge(connection, key)
                self._welcome(connection)
            except (AuthenticationError, EOFError, OSError):
                connection.close()
            finally:
                unproved.release()

        with listener:
            while not self._is_closing:
                with contextlib.suppress(OSError):  # the connection was closed
                    connection = listener.accept()
                    if unproved.acquire(blocking=False):
                        threading.Thread(target=prove, args=[connection], daemon=True).start()
                    else:
                        connection.close()

    def _welcome(self, connection: Connection) -> None:
        """Receive the first message of a member's process."""
        try:
            request = connection.recv()
            member = self._by_folder[request["folder"]]
            _set_timeout(connection, 0)  # no timeout: a member may compute for any time
        except (EOFError, OSError, KeyError):
            connection.close()
            return
        member.request = request
        member.connections[request["rank"]] = connection

    def _conduct(self) -> None:
        try:
            while not all(each.is_ready for each in self.members):
                time.sleep(POLL_S)
            order = random.Random(" ".join(self._by_folder))
            for turn in itertools.count():
                if turn == 1:
                    self._plan()
                for member in order.sample(self.members, len(self.members)):
                    if not member.is_gone:
                        self._give_block(member, turn)
                if not self._playing() or self._is_enough():
                    break
            self._is_closing = True
            for member in self.members:
                self._send(member, NO_MORE, 0)
            while any(member.connections for member in self.members):
                self._receive()
        finally:  # a waiting member notices that the turns are over
            self._is_closing = True
            for member in self.members:
                for connection in member.connections.values():
                    connection.close()

    def _playing(self) -> list[Member]:
        """Return the members that get further turns: none, if only repetitions are left."""
        members = [each for each in self.members if not each.is_gone]
        return members if any(not each.is_repeat for each in members) else []

    def _give_block(self, member: Member, turn: int) -> None:
        """Let a member compute a block of steps, and wait until all its ranks have finished it."""
        steps = self._block(member, turn) if turn else member.request["warmup_steps"]
        if not steps:
            return
        member.given_steps += steps
        self._send(member, turn, steps)
        due = set(member.connections.values())
        while due & set(member.connections.values()):
            for connection, block in self._receive():
                due.discard(connection)
                if connection is member.connections.get(0):
                    member.add(block, turn)

    def _block(self, member: Member, turn: int) -> int:
        """Return a member's steps in this turn: all members finish theirs in the same turn."""
        if member.request["budget_s"]:  # the budget ends the turns, even if steps are left
            return member.shortest_block()
        return math.ceil(member.steps_left / max(1, self._last_turn - turn + 1))

    def _plan(self) -> None:
        """Choose the last turn, after the warm-up; a budget may end the turns earlier."""
        turns = [each.steps_left // each.shortest_block() for each in self._playing()]
        self._last_turn = min(turns, default=0)

    def _send(self, member: Member, turn: int, steps: int) -> None:
        left = [each.name for each in self.members if each.has_left]
        for connection in member.connections.values():
            with contextlib.suppress(OSError):  # it has just ended; the next receive shows it
                connection.send({"turn": turn, "steps": steps, "left": left})

    def _receive(self) -> list[tuple[Connection, dict[str, float]]]:
        """Return the blocks that were reported just now; drop processes that have ended."""
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
                # Tell the others now, because its processes may take a while to end.
                member.has_left |= member.steps_left > 0 and not self._is_closing
        return reported

    def _is_enough(self) -> bool:
        """Return whether all ratios to the first run are certain, or the budgets are used up."""
        first, *others = self._playing()
        budgets = [each.request["budget_s"] for each in (first, *others)]
        if not all(budgets):
            return False
        if sum(each.measured_s for each in (first, *others)) >= sum(budgets):
            return True
        if len(first.images_per_s) < LEAST_TURNS:
            return False
        return all(is_sure(_ratios(each, first)) for each in others)


def _set_timeout(connection: Connection, seconds: int) -> None:
    """Set a timeout in seconds for reading and writing; 0: none."""
    with socket.socket(fileno=os.dup(connection.fileno())) as ours:
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            ours.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", seconds, 0))


def _ratios(member: Member, first: Member) -> np.ndarray:
    pairs = list(zip(member.images_per_s, first.images_per_s))  # one may be a block ahead
    return np.array([own / base for own, base in pairs])
