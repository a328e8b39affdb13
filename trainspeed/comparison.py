"""Compare the speeds of training commands, or of functions, by letting them take turns."""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shlex
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, TextIO

import psutil

from trainspeed import run
from trainspeed.ratio import FEW_TURNS, MIN_TURNS, SURE, Ratio, centre
from trainspeed.turns import (
    ENDED,
    Block,
    Function,
    Side,
    SideEnded,
    is_enough,
    ratios,
    take_turns,
)

SECONDS = 60.0  # of measuring
POLL_S = 0.2
RANKS_S = 120.0  # within which all ranks end a block, after the first has
LEAVES_S = 30.0  # that the rest of a command may take to end, after its training process has
TAIL = 12  # lines of a failed command's output that are shown
LONGEST_PATH = 90  # of a Unix socket; systems allow 104 or 108 characters
ITERATIONS, SAMPLES, CALLS = "iterations/s", "samples/s", "calls/s"
# What a command writes that does not fit next to another one.
NO_MEMORY = re.compile(
    r"out of memory|OutOfMemory|ALLOC_FAILED|can't allocate memory|cannot allocate memory"
    r"|MemoryError|bad_alloc|exitcode\s*:\s*-9|killed by signal: (Killed|Bus)",
    re.IGNORECASE,
)
NO_PORT = re.compile(r"EADDRINUSE|address already in use", re.IGNORECASE)


class CompareError(ValueError):
    """Commands that cannot be compared; the message has the reason. `code`: the exit code."""

    def __init__(self, message: str, code: int = 2) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Comparison:
    """The speeds of several sides, measured in turns.

    Attributes:
        base: the name of the first side, to which the others are compared.
        ratios: of the other sides' speeds to it, by name; without a turn, empty.
        speeds: the median of each side, by name.
        unit: of the speeds.
        turns: how many were measured.
        ended: why there were no more.
        alternated: why one ran after the other; "" if they ran at the same time.
        samples: of a usual iteration by name, 0 if unknown.
    """

    base: str
    ratios: dict[str, Ratio]
    speeds: dict[str, float]
    unit: str
    turns: int
    ended: str
    alternated: str = ""
    samples: dict[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> Ratio | None:
        """The ratio of the last side; None without a turn."""
        return [*self.ratios.values()][-1] if self.ratios else None

    def noise(self, name: str) -> str:
        """Return why it does not show whether a side is faster; "" if it does."""
        if name not in self.ratios:
            return f"no turn was complete ({self.ended})"
        reason = self.ratios[name].noise()
        return f"{reason} ({self.ended})" if reason else ""

    @property
    def is_noisy(self) -> bool:
        """Whether a ratio is too noisy to judge."""
        return any(self.noise(name) for name in self.speeds if name != self.base)

    def __str__(self) -> str:
        how = f"{self.turns} turn{'s'[: self.turns != 1]}"
        if self.alternated:
            how += f", one after the other: {self.alternated}"
        lines = []
        for name in self.speeds:
            if name == self.base:
                continue
            speed = f"{self.ratios[name]}" if name in self.ratios else ""
            if noise := self.noise(name):
                lines.append(f"{name}: too noisy to judge: {noise}; {speed and speed + ', '}{how}")
            else:
                lines.append(f"{name}: {speed} the {self.unit} of {self.base}; {how}")
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as values that JSON has."""
        names = ("base", "unit", "speeds", "turns", "ended", "alternated")
        values = {name: getattr(self, name) for name in names}
        ratios = {
            name: {key: getattr(ratio, key) for key in ("value", "low", "high")}
            | {"noise": self.noise(name)}
            for name, ratio in self.ratios.items()
        }
        return values | {"samples_per_iteration": self.samples, "ratios": ratios}


def compare(
    sides: Mapping[str, str | Sequence[str] | Callable[[], Any]],
    *,
    seconds: float = SECONDS,
    env: Mapping[str, Mapping[str, str]] | None = None,
    plans: Mapping[str, Mapping[str, Any]] | None = None,
    on_report: Callable[[str, dict[str, Any]], None] = lambda name, report: None,
    progress: TextIO | None = None,
) -> Comparison:
    """Measure the ratios of speeds of several commands, or of several functions, to the first.

    Commands run at the same time, and compute in turns: a block of iterations of at least half a
    second, while the others wait at the end of an iteration with their DataLoader's workers
    stopped. If they don't fit in memory together, one runs after the other, several times.
    Functions are called in turns, in this process.

    Args:
        sides: by name: `{"eager": "python train.py", "compiled": "python train.py --compile"}`.
        seconds: of measuring, at most. It ends earlier if all intervals are within 5 %.
        env: environment variables of each side, by its name.
        plans: fields of the probe's `Plan` for each side, by its name.
        on_report: is called with a side's name and what its rank 0 reports after each block.
        progress: where a line shows the state, such as `sys.stderr`.

    Raises:
        CompareError: a command cannot be started, failed, or has no iterations.
    """
    if len(sides) < 2:
        raise CompareError(f"{len(sides)} side{'s'[: len(sides) != 1]}: expected at least two")
    if not seconds > 0:
        raise CompareError(f"seconds={seconds:g}: expected more than 0")
    if all(callable(side) for side in sides.values()):
        functions = [Function(name, call) for name, call in sides.items()]
        return _compare(functions, seconds, progress)
    if any(callable(side) for side in sides.values()):
        raise CompareError("functions and commands: expected only functions, or only commands")
    commands = {name: parse_command(command) for name, command in sides.items()}
    with Stage(on_report) as stage:
        stage.patience_s, members = seconds, []
        for name, (values, command) in commands.items():
            values = values | dict((env or {}).get(name, {}))
            plan = (plans or {}).get(name, {})
            members.append(Command(name, command, values, stage, plan))
        try:
            with _running(members):
                return _compare(members, seconds, progress)
        except NoRoom as error:
            return _alternate(members, seconds, progress, error.reason)


def parse_command(command: str | Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the variables that a command begins with, as in a shell, and its words.

    Raises:
        CompareError: it is no command, or its program does not exist.
    """
    try:
        words = shlex.split(command) if isinstance(command, str) else [*command]
    except ValueError as error:
        raise CompareError(f"{command}: {error}") from error
    values = {}
    while words and re.match(r"[A-Za-z_]\w*=", words[0]):
        name, _, value = words.pop(0).partition("=")
        values[name] = value
    try:
        return values, run.check_command(words)
    except run.CommandError as error:
        raise CompareError(str(error)) from error


class NoRoom(Exception):
    """Two commands cannot run at the same time, for the `reason`; `failure`: of one of them."""

    def __init__(self, reason: str, failure: CompareError) -> None:
        super().__init__(reason)
        self.reason, self.failure = reason, failure


class Stage:
    """The folder of a comparison, and the socket to which training processes connect."""

    def __init__(self, on_report: Callable[[str, dict[str, Any]], None]) -> None:
        self.on_report = on_report
        self.patience_s = SECONDS  # for a block; longer, if it was expected to take longer
        self._exits = ExitStack()
        self.folder = Path()
        self._commands: dict[str, Command] = {}  # by their folder

    def __enter__(self) -> Stage:
        place = None if len(tempfile.gettempdir()) < LONGEST_PATH - 30 else "/tmp"
        self.folder = Path(
            self._exits.enter_context(tempfile.TemporaryDirectory(prefix="trainspeed-", dir=place))
        )
        self.address = str(self.folder / "turns")
        self.server = self._exits.enter_context(socket.socket(socket.AF_UNIX))
        self.server.bind(self.address)
        self.server.listen(64)
        return self

    def __exit__(self, *_: Any) -> None:
        self._exits.close()

    def add(self, command: Command) -> Path:
        """Return a folder for what a command writes."""
        folder = self.folder / f"side{len(self._commands)}"
        folder.mkdir()
        self._commands[str(folder)] = command
        return folder

    def receive(self, commands: Sequence[Command]) -> None:
        """Pass messages to commands; also new connections. Wait for some, for a while."""
        owners = {c: command for command in commands for c in command.connections.values()}
        for source in wait([self.server, *owners], POLL_S):
            if source is self.server:
                connection = Connection(self.server.accept()[0].detach())
                with suppress(EOFError, OSError):
                    message = json.loads(connection.recv_bytes())
                    self._commands[message["folder"]].connect(connection, message)
            else:
                owners[source].receive(source)


class Command(Side):
    """A command whose training processes wait for their turns."""

    def __init__(
        self,
        name: str,
        command: list[str],
        env: dict[str, str],
        stage: Stage,
        plan: Mapping[str, Any],
    ) -> None:
        super().__init__(name)
        self._plan = plan
        self._command, self._env, self._stage = command, env, stage
        self.folder = stage.add(self)
        self.connections: dict[int, Connection] = {}  # by rank
        self.reports: dict[int, dict[str, Any]] = {}  # of the current block, by rank
        self.rule, self.process = "", None
        self._world_size, self._has_left = 0, False
        self._runs = 0

    # Its processes.

    def start(self) -> None:
        """Start the command; its output goes to a file."""
        from trainspeed.recorder import Plan

        self.connections, self.reports = {}, {}
        self._world_size, self._has_left = 0, False
        self._runs += 1
        plan = Plan(str(self.folder), turns=self._stage.address, **self._plan)
        port = str(_free_port())  # or two torchruns want the same one
        ports = {"MASTER_PORT": port, "PET_MASTER_PORT": port}
        env = os.environ | {"PYTHONUNBUFFERED": "1"} | ports | self._env
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(
                self._command,
                env=run.environment(plan, env),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C reaches only this process, which ends them
            )

    @property
    def _log(self) -> Path:
        return self.folder / f"output-{self._runs}.txt"

    def end(self) -> None:
        """End all processes of the command."""
        for connection in self.connections.values():
            connection.close()
        if self.process is not None:
            run.end(self.process)
            end_processes_with(str(self.folder))

    @property
    def is_ready(self) -> bool:
        """Whether all ranks have reached the end of their first iteration."""
        return 0 < self._world_size == len(self.connections) == len(self.reports)

    def wait_until_ready(self, commands: Sequence[Command]) -> None:
        """Wait for the first iterations of all of these commands.

        Raises:
            CompareError: a command ended before.
        """
        first_s: dict[str, float] = {}
        while not all(command.is_ready for command in commands):
            self._stage.receive(commands)
            for command in commands:
                try:
                    command.check()
                except SideEnded as error:
                    raise CompareError(f"{error.reason} before its first turn", 1) from error
                if command.connections and not command.is_ready:
                    command.check_ranks(first_s.setdefault(command.name, time.monotonic()))

    def connect(self, connection: Connection, message: dict[str, Any]) -> None:
        """Note a training process that has ended its first iteration."""
        rank = message["rank"]
        if rank in self.connections:
            raise CompareError(
                f"{self.name}: two processes train, and both have the rank {rank}: expected one "
                f"training per command, with RANK and WORLD_SIZE as torchrun sets them"
            )
        self.connections[rank], self.reports[rank] = connection, message
        self._world_size = message["world_size"]
        if rank == 0 and self._runs == 1:
            self._stage.on_report(self.name, message)
        self.rule = self.rule or message["rule"]

    def receive(self, connection: Connection) -> None:
        """Note a rank's report about a block; or that it has ended."""
        rank = next(rank for rank, c in self.connections.items() if c is connection)
        try:
            self.reports[rank] = json.loads(connection.recv_bytes())
            if rank == 0 and self._runs == 1:
                self._stage.on_report(self.name, self.reports[rank])
        except (EOFError, OSError):
            connection.close()
            del self.connections[rank]
            self._has_left = True

    def check(self) -> None:
        """Raise SideEnded, NoRoom or CompareError if its training has ended."""
        if self._has_left:
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(LEAVES_S)
        elif self.process.poll() is None:
            return
        if (path := self.folder / ENDED).exists():
            raise SideEnded(self, path.read_text())
        code = self.process.poll() or 0
        output = self._log.read_bytes()[-20_000:].decode(errors="replace")
        if code:
            failure = CompareError(_failure(self.name, code, output), 1)
            if code in (-9, 137) or NO_MEMORY.search(output):
                raise NoRoom("both together need more memory than there is", failure)
            if NO_PORT.search(output):
                raise NoRoom("both use the same port", failure)
            raise failure
        if not self.blocks and not self.iteration_s and not self._has_left:
            raise CompareError(
                f"{self.name}: no iteration was seen: the command ended without an optimizer "
                f"step, a backward pass or a loop over a DataLoader. {_tail(output)}".rstrip()
            )
        raise SideEnded(self, f"{self.name} ended")

    def check_ranks(self, since_s: float) -> None:
        """Raise CompareError if some ranks have kept the others waiting for too long."""
        if time.monotonic() - since_s > RANKS_S and self._world_size > 1:
            missing = sorted({*range(self._world_size)} - {*self.reports})
            raise CompareError(
                f"{self.name}: ranks {missing} of {self._world_size} have not come to the end of "
                f"an iteration {RANKS_S:.0f} s after another rank: expected all ranks on this "
                f"machine, with the same number of iterations",
                1,
            )

    # Its turns.

    def compute(self, iterations: int) -> Block:
        self.reports = {}
        for connection in self.connections.values():
            with suppress(OSError):  # it has just ended; the next receive shows it
                connection.send_bytes(json.dumps(iterations).encode())
        begin_s, first_s = time.monotonic(), 0.0
        while len(self.reports) < self._world_size:
            self._stage.receive([self])
            self.check()
            if self.reports:
                first_s = first_s or time.monotonic()
                self.check_ranks(first_s)
            patience_s = max(self._stage.patience_s, 5 * iterations * self.iteration_s)
            if self.iteration_s and time.monotonic() - begin_s > patience_s:
                raise SideEnded(self, f"{self.name} ended no iteration for a long time")
        slowest = max(report["seconds"] for report in self.reports.values())
        samples = sum(report["samples"] for report in self.reports.values())
        self.rule = self.reports[0]["rule"]
        return Block(iterations, slowest, samples)


def end_processes_with(folder: str) -> None:
    """End all processes that have this folder in their plan, also those without a parent."""
    left = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            if folder in process.environ().get(run.PLAN, "") and process.pid != os.getpid():
                left.append(process)
    for process in left:
        with suppress(psutil.Error):
            process.kill()
    psutil.wait_procs(left, timeout=run.GRACE_S)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def _failure(name: str, code: int, output: str) -> str:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return f"{name} failed ({how}). {_tail(output)}".rstrip()


def _tail(output: str) -> str:
    lines = output.replace("\r", "\n").rstrip().splitlines()[-TAIL:]
    return "\n".join(["Its last output:", *(f"    {line}" for line in lines)]) if lines else ""


@contextmanager
def _running(commands: Sequence[Command]) -> Iterator[None]:
    """Run commands in the block; when it ends, nothing of them is left."""
    try:
        for command in commands:
            command.start()
        commands[0].wait_until_ready(commands)
        yield
    finally:
        for command in commands:
            command.end()


def _compare(sides: Sequence[Side], seconds: float, progress: TextIO | None) -> Comparison:
    rules = _rules(sides)

    def on_turn() -> None:
        nonlocal rules
        if (now := _rules(sides)) != rules:  # what was measured was not yet training
            rules = now
            for side in sides:
                side.blocks.clear()
        _show(sides, progress)

    ended = take_turns(sides, lambda: _why_over(sides, seconds), random.Random(), on_turn)
    return _summarise(sides, ended)


def _alternate(
    commands: Sequence[Command], seconds: float, progress: TextIO | None, reason: str
) -> Comparison:
    """Run one command after the other, several times, as long as no ratio is clear."""
    order, ended = random.Random(), ""
    block_s = seconds / MIN_TURNS / len(commands)
    for command in commands:
        command.blocks.clear()
    try:
        while not ended:
            blocks = {}
            for command in order.sample(commands, len(commands)):
                with _running([command]):
                    command.warm_up()
                    blocks[command.name] = command.measure(block_s)
            for command in commands:
                command.blocks.append(blocks[command.name])
            _show(commands, progress)
            turns = len(commands[0].blocks)
            if turns >= FEW_TURNS and not _summarise(commands, "").is_noisy:
                ended = "the ratio is clear"
            elif turns >= MIN_TURNS:
                ended = f"{turns} runs of each"
    except NoRoom as error:
        raise error.failure from error
    except SideEnded as error:
        ended = error.reason
    comparison = _summarise(commands, ended)
    comparison.alternated = reason
    return comparison


def _rules(sides: Sequence[Side]) -> list[str]:
    return [getattr(side, "rule", CALLS) for side in sides]


def _why_over(sides: Sequence[Side], seconds: float) -> str:
    """Return why there are enough turns; "" if there are not."""
    if is_enough(sides):
        return f"the interval is within {SURE:.0%}"
    measured_s = sum(block.seconds for side in sides for block in side.blocks)
    if measured_s >= seconds and len(sides[0].blocks) >= FEW_TURNS:
        return f"{seconds:g} s were measured"
    return ""


def _show(sides: Sequence[Side], progress: TextIO | None) -> None:
    if progress is not None:
        text = ", ".join(f"{side.name} {_ratio(side, sides[0])}" for side in sides[1:])
        print(f"\r\x1b[Kturn {len(sides[0].blocks)}: {text}", end="", file=progress, flush=True)


def _ratio(side: Side, base: Side, factor: float = 1.0) -> Ratio | None:
    values = factor * ratios(side, base)
    load = os.getloadavg()[0] / os.cpu_count()  # both of the whole machine
    return Ratio(*centre(values), turns=len(values), load=load) if len(values) else None


def _summarise(sides: Sequence[Side], ended: str) -> Comparison:
    base, rules = sides[0], _rules(sides)
    samples = {
        side.name: statistics.median([block.samples for block in side.blocks] or [0.0])
        for side in sides
    }
    unit = ITERATIONS if CALLS not in rules else CALLS
    counts = [*samples.values()]
    if min(counts) > 0 and (max(counts) > 1.01 * min(counts) or len({*rules}) > 1):
        unit = SAMPLES
    factors = samples if unit == SAMPLES else dict.fromkeys(samples, 1.0)
    ratios = {
        side.name: _ratio(side, base, factors[side.name] / factors[base.name]) for side in sides[1:]
    }
    return Comparison(
        base=base.name,
        ratios={name: ratio for name, ratio in ratios.items() if ratio},
        speeds={
            side.name: factors[side.name]
            * statistics.median([block.per_s for block in side.blocks] or [0.0])
            for side in sides
        },
        unit=unit,
        turns=len(base.blocks),
        ended=ended,
        samples=samples,
    )


# The command `trainspeed compare`.


def add_compare(commands: argparse._SubParsersAction) -> None:
    """Add `trainspeed compare`."""
    parser = commands.add_parser(
        "compare",
        help="measure which of several training commands is faster, in turns",
        usage='trainspeed compare "python a.py" "python b.py" [options]',
        epilog="Exit codes: 0 judged, 1 a command failed, 2 wrong usage, 3 too noisy to judge.",
    )
    parser.add_argument("commands", nargs="*", help="each in quotes; may begin with NAME=value")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="to measure, at most")
    parser.add_argument("--json", action="store_true", help="print values instead of lines")
    parser.set_defaults(run=run_compare)


def run_compare(options: argparse.Namespace, command: list[str]) -> int:
    """Compare commands, print the result, and return the exit code."""
    sides: dict[str, str] = {}
    for text in [*options.commands, *([shlex.join(command)] if command else [])]:
        name = text if text not in sides else f"{text} ({len(sides) + 1})"
        sides[name] = text
    progress = sys.stderr if sys.stderr.isatty() else None
    try:
        with ended_by_signals():
            comparison = compare(sides, seconds=options.seconds, progress=progress)
    except KeyboardInterrupt:
        return 130
    finally:
        if progress:
            print("\r\x1b[K", end="", file=progress)
    print(json.dumps(comparison.to_dict(), indent=1) if options.json else comparison)
    return 3 if comparison.is_noisy else 0


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """End by an exception if this process is terminated, so that nothing is left running."""

    def leave(number: int, frame: Any) -> None:
        raise SystemExit(128 + number)

    numbers = (signal.SIGTERM, signal.SIGHUP)
    handlers = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
