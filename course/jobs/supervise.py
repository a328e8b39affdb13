"""The body of a job: waits for its turn, runs the snapshots, and sees to it that records are left.

It runs once on every task (on Slurm under submitit) as the parent of the training processes: of
one, or, where runs of a group take turns, of one for each. So it can tell what such a process no
longer can: that it was killed, or ran past its time.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from subprocess import Popen
from typing import TYPE_CHECKING, Any

from course.jobs import group, tickets
from course.jobs.processes import (
    COMMAND_VARIABLE,
    end_command,
    identity,
    loopback,
    usable_cores,
)
from course.jobs.warm import client
from course.jobs.warm import start as warm
from course.jobs.warm.forks import Forked
from course.runs import failures, logs, ranks
from course.runs.files import write_atomically
from course.runs.record import Record, write_record
from course.runs.restarts import GO_ON, interruptions
from course.runs.run import FOLDER_VARIABLE, RACE_BEGAN, RACE_CLOCK, Run, record_of
from course.training import turn

if TYPE_CHECKING:
    from submitit import JobEnvironment

WATCH_S = 0.2  # between two looks at runs that are timed meanwhile: not too often
EXIT_CODES = {"timeout": 124}  # as the command of that name has it
DUMP_MS = 1000  # for one attempt; there are two, and up to a second passes before the first
# For a last checkpoint, once the job is asked to end: here less than `local.stop` waits. Slurm ends
# it by itself, after a grace of its own.
SAVE_S = {"local": 8.0, "slurm": 600.0}
GRACE_S = 15.0  # for the processes that are left once the run's verdict is in


class Ended(Exception):
    """The job's verdict is in, or must be given now."""


@dataclass(frozen=True)
class LocalTask:
    """A task of a job on this machine, with the names that submitit has for those of Slurm."""

    global_rank: int
    num_tasks: int
    job_id: str
    num_nodes: int = 1
    hostname: str = socket.gethostname()

    @property
    def local_rank(self) -> int:
        """The same: there is one machine."""
        return self.global_rank


def supervise(folder: str, task: LocalTask | JobEnvironment | None = None) -> None:
    """Run the job of the run in `folder` as this task of it: that run, and those of its group.

    Args:
        task: None: that of Slurm, as submitit calls it.
    """
    signal.signal(signal.SIGTERM, _cancelled)
    if task is None:
        from submitit import JobEnvironment  # only here: it takes longer than all the rest

        task = JobEnvironment()
    first = Run(Path(folder))
    by_slurm = first.launched.get("executor") == "slurm"
    members = [
        (SupervisedCommand if run.is_command else SupervisedRun)(run, task, number)
        for number, run in enumerate(first.together)
        if run.is_command or task.global_rank < run.launched["gpus"]
    ]
    if by_slurm:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's warning before Slurm's limit
        _begin_anew(first.together, task)
    try:
        with nullcontext() if by_slurm else _turn(first, task.global_rank):
            _compute(members, task)
    except Ended as end:
        for member in members:
            if by_slurm and task.global_rank == 0 and not member.verdict:
                # Or preempted, and put back into the queue: accounting knows which.
                (member.run.folder / "started.json").unlink(missing_ok=True)
            elif not by_slurm:
                member.give(Record(str(end), error=_explain(str(end), first.launched)))
    verdicts = [member.verdict for member in members if member.verdict]
    if by_slurm and verdicts and all(verdict.status != "ok" for verdict in verdicts):
        # Or accounting would call the job completed.
        sys.exit(EXIT_CODES.get(verdicts[0].status, 1))


def _begin_anew(runs: Sequence[Run], task: LocalTask | JobEnvironment) -> None:
    """Slurm restarts a job that it had preempted, or whose node went down."""
    if task.global_rank == 0 and int(os.environ.get("SLURM_RESTART_COUNT", 0)):
        for run in (each for each in runs if not each.record):
            # One that saves goes on from its checkpoint, and keeps the steps before it by itself.
            steps = [] if _saves(run) else run.folder.glob("steps*.jsonl")
            for path in [*steps, *run.folder.glob("rank*")]:
                path.unlink(missing_ok=True)


def _saves(run: Run) -> bool:
    """Does it write checkpoints, so that it can go on?"""
    return not run.is_command and run.config.save_every > 0


def _cancelled(*_: Any) -> None:
    raise Ended("cancelled")


@contextmanager
def _turn(run: Run, rank: int) -> Iterator[None]:
    """Make sure that no other run computes on this machine: two at once would spoil both times."""
    if rank > 0:
        while not any(each.started for each in run.together):
            _leave_if_over(run)
            time.sleep(WATCH_S)
        yield
        return
    with tickets.turn():
        _leave_if_over(run)
        yield


def _leave_if_over(run: Run) -> None:
    records = [each.record for each in run.together]
    if all(records):
        raise Ended(records[0].status)


def _compute(members: Sequence[SupervisedRun], task: LocalTask | JobEnvironment) -> None:
    """Run the members' snapshots to their ends. Whatever happens, no process outlives this one."""
    waiting = [each for each in members if not each.run.record]
    began = time.monotonic()
    deadline = began + members[0].run.launched["time_min"] * 60
    together, turns = group.agree(members[0].run, task.global_rank, deadline)
    if together and _is_local(members[0].run) and client.is_wanted():
        warm.prepare()  # once for all of them, rather than once for each
    running: list[SupervisedRun] = []
    try:
        while waiting or running:
            while waiting and (together or not running) and waiting[0].may_begin():
                running.append(waiting.pop(0))
                with _sigterm_held():
                    running[-1].start(in_turns=together)
                if turns and not waiting:
                    turns.start()  # only now: a process is better not forked beside a thread
            for member in list(running):
                if member.is_over(deadline):
                    running.remove(member)
                    if turns:
                        turns.is_over(member.run, member.verdict.status)
            if waiting or running:  # a short job is looked at more often, so that it is soon over
                time.sleep(min(WATCH_S, (time.monotonic() - began) / 10))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # they end, and nothing may come between
        for member in running:
            member.ask_to_save()
        for member in running:
            member.end()


def _is_local(run: Run) -> bool:
    return run.launched.get("executor", "local") == "local"


@contextmanager
def _sigterm_held() -> Iterator[None]:
    """Hold a SIGTERM back: a process that is just being started would be left behind."""
    held: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, _cancelled)
    if held:
        raise Ended("cancelled")


class SupervisedRun:
    """One run of the job, on this task: its process, and what it is worth."""

    def __init__(self, run: Run, task: LocalTask | JobEnvironment, number: int) -> None:
        self.run, self.number = run, number
        self.rank, self.ranks = task.global_rank, run.launched["gpus"]
        self.verdict: Record | None = None
        self._task, self._child = task, None
        self._verdict_since = 0.0  # since when the record is there, though the process is, too
        self._is_through = False  # did this rank end well?
        self._in_turns = False
        self._starts = 0  # of the training process so far
        self._store: Popen | Forked | None = None  # of a local run's ranks, in rank 0
        self._interruptions = 0  # that were planted, and are behind it
        self._times_race = self.rank == 0 and "race" in run.launched
        self._race_began_s: float | None = None  # by the disk's clock

    def start(self, *, in_turns: bool) -> None:
        """Start the training process; rank 0 notes that the run has begun."""
        self._in_turns = in_turns
        try:
            self._child = self._start_process(in_turns)
            if self.rank == 0:
                started = {
                    "host": self._task.hostname,
                    "supervisor": identity(os.getpid()),
                    "started_at": datetime.now().isoformat(timespec="seconds"),
                }
                write_atomically(self.run.folder / "started.json", json.dumps(started))
        except OSError as error:  # a run that nobody can see must not compute
            self.kill()
            self.give(_unwritable(error))

    def may_begin(self) -> bool:
        """Has the first task begun this run? One whose turn it is not must not compute."""
        if self.rank == 0 or self.run.record:
            return True
        if _is_local(self.run):
            return group.store_file(self.run, self._starts).exists()
        return len(self.run.together) == 1 or bool(self.run.started)

    def _start_process(self, in_turns: bool) -> Popen | Forked:
        script, folder, env = self.run.script, self.run.folder, self._environment()
        if in_turns:
            env[turn.VARIABLE] = str(group.address_file(self.run))
        if self.run == self.run.job:
            return warm.start_script(script, cwd=folder, env=env)
        # The job's own logs are those of the run in whose folder they lie.
        place = folder / "logs"
        place.mkdir(exist_ok=True)
        stem = f"{self.run.launched.get('job_id', 'job')}_{self.rank}_log"
        with (place / f"{stem}.out").open("a") as out, (place / f"{stem}.err").open("a") as err:
            streams = {"stdout": out.fileno(), "stderr": err.fileno()}
            return warm.start_script(script, cwd=folder, env=env, **streams)

    def _environment(self) -> dict[str, str]:
        within = min(self.ranks, self._task.num_tasks // self._task.num_nodes)
        env = os.environ | {
            **self._meeting_point(),
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self._task.local_rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(within),
            FOLDER_VARIABLE: str(self.run.folder),
        }
        if not self.run.is_command and self.run.config.device == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ""  # or PyTorch joins ranks on the CPU through NCCL
        cores = len(usable_cores()) // self.ranks
        if self.run.launched.get("executor") == "slurm":
            cores = int(os.environ.get("SLURM_CPUS_PER_TASK", cores))
        if self.ranks > 1:  # or each process would start a thread for every core
            env.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
            # After a collective's timeout, NCCL's watchdog sleeps four times this before it ends
            # the process: by default a minute, for dumps of its flight recorder, which nobody
            # reads here.
            env.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", str(DUMP_MS))
        return env

    def _meeting_point(self) -> dict[str, str]:
        """Where the ranks meet, each time they start; never where an outer job's ranks do."""
        start, self._starts = self._starts, self._starts + 1
        if not _is_local(self.run):  # each run of the job has a process group
            port = group.first_port(self._task.job_id) + self.number
            return {"MASTER_ADDR": group.first_node(self.run), "MASTER_PORT": str(port)}
        here = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "GLOO_SOCKET_IFNAME": loopback()}
        if self.ranks == 1:
            return here
        path = group.store_file(self.run, start)
        if self.rank == 0:
            self._end_store()
            self._store = group.start_store(self.run, start)
        while not path.exists() and not self.run.record:
            time.sleep(WATCH_S)
        port = path.read_text() if path.exists() else "0"  # the run is over: its process will end
        # With this variable of torchrun's, rank 0 expects a store there, and starts none itself.
        return here | {"MASTER_PORT": port, "TORCHELASTIC_USE_AGENT_STORE": "True"}

    def _end_store(self) -> None:
        if self._store:
            self._store.send_signal(signal.SIGKILL)
            self._store.wait()

    def is_over(self, deadline: float) -> bool:
        """Has the run ended on this task? If so, its verdict is given and no process is left."""
        try:
            verdict = self.verdict or self._look(deadline)
        except OSError as error:
            verdict = _unwritable(error)
        if verdict is None:
            return False
        self.ask_to_save()  # where it is not over by itself
        self.end()
        self._write_race_clock()
        self.give(verdict)
        return True

    def _look(self, deadline: float) -> Record | None:
        """What the run is worth by what is seen just now; None: it goes on."""
        self._look_at_race()
        now, record, code = time.monotonic(), self.run.record, self._child.poll()
        if now > deadline:
            return self._ended("timeout")
        if code is None:
            if record:
                self._verdict_since = self._verdict_since or now
            lingers = record and now > self._verdict_since + GRACE_S
            cancelled = record and record.status == "cancelled"
            return self._ended(record.status) if lingers or cancelled else None
        if self._goes_on(code) and not record:
            self._child = self._start_process(self._in_turns)
            return None
        verdict = self._by_exit(code)
        if verdict.status != "ok":
            return self._own_words(verdict)
        return self._with_others(verdict, record)

    def _look_at_race(self) -> None:
        """Note when the clock of a race started, the first time that the file is there."""
        if self._times_race and self._race_began_s is None:
            with suppress(FileNotFoundError):
                self._race_began_s = (self.run.folder / RACE_BEGAN).stat().st_ctime

    def _write_race_clock(self) -> None:
        """Write how long a race took until its last weights, by a clock that no script sets.

        It is the time of change of two files (ctime). The process is over, so it cannot change
        the result.
        """
        self._look_at_race()
        if self._race_began_s is None:
            return
        seconds = None
        with suppress(FileNotFoundError):
            ended_s = (self.run.folder / "weights.pt").stat().st_ctime
            seconds = ended_s - self._race_began_s
            if self._race_began_s.is_integer() and ended_s.is_integer():
                seconds -= 1  # a disk that counts whole seconds, such as Lustre: it took no less
        with suppress(OSError):  # a full disk: the referee refuses what has no such time
            write_atomically(self.run.folder / RACE_CLOCK, json.dumps({"seconds": seconds}))

    def _goes_on(self, code: int) -> bool:
        """Has the process ended before the run, so that another is to go on?"""
        planted = len(interruptions(self.run.folder))
        was_planted, self._interruptions = planted > self._interruptions, planted
        return (code == GO_ON and _saves(self.run)) or (was_planted and code != 0)

    def _ended(self, status: str) -> Record:
        return Record(status, error=_explain(status, self.run.launched))

    def _by_exit(self, code: int) -> Record:
        """What a process is worth by its exit alone, should it leave no record."""
        if code == 0:
            return Record("ok")
        if hung := ranks.hangs(self.run):
            return Record("failed", error=failures.describe_hangs(self.rank, hung))
        last_words = logs.text(self.run, err=True, lines=20)
        if code > 0:
            headline = f"the script ended with code {code}"
            if lines := last_words.strip().splitlines():  # Python prints the exception last
                headline = f"{lines[-1]} ({headline})"
            return Record("failed", error=f"{headline}\n{last_words}")
        why = " (often: the system ran out of memory)" if -code == signal.SIGKILL else ""
        name = signal.Signals(-code).name
        return Record("lost", error=f"the process was killed by {name}{why}\n{last_words}")

    def _own_words(self, verdict: Record) -> Record:
        """How the script of a rank says itself that it failed, rather than the end of its log."""
        own = [each for each in self.run.ranks if each["rank"] == self.rank and each["error"]]
        if verdict.status != "failed" or not own:
            return verdict
        return Record(own[0]["status"], error=own[0]["error"])

    def _with_others(self, verdict: Record, record: Record | None) -> Record | None:
        """Rank 0 is not done before every rank is: one that fails later fails the run."""
        if not self._is_through:
            (self.run.folder / f"rank{self.rank}.done").touch()
            self._is_through = True
        if self.rank > 0 or len(list(self.run.folder.glob("rank*.done"))) == self.ranks:
            return verdict
        return self._ended(record.status) if record and record.status != "ok" else None

    def ask_to_save(self) -> None:
        """Tell a process that can go on later that its end is near."""
        if self._child is not None and _saves(self.run):
            self._child.send_signal(signal.SIGTERM)

    def end(self) -> None:
        """End the process; one that saves has SAVE_S to do so."""
        if self._child is not None and _saves(self.run):
            deadline = time.monotonic() + SAVE_S[self.run.launched.get("executor", "local")]
            while time.monotonic() < deadline and self._child.poll() is None:
                time.sleep(WATCH_S)
        self.kill()

    def kill(self) -> None:
        """End the training process and those it started, DataLoader workers for instance."""
        self._end_store()
        if self._child is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.send_signal(signal.SIGKILL)  # a fork may not have a group of its own yet
        self._child.wait()

    def give(self, verdict: Record) -> None:
        """Leave a record, unless there is one: the first verdict stands."""
        if self.verdict is None and (self.rank == 0 or verdict.status != "ok"):
            values = {"status": verdict.status, "error": verdict.error}
            if began := self.run.started.get("started_at"):
                lasted = datetime.now() - datetime.fromisoformat(began)
                values["wall_s"] = lasted.total_seconds()
            try:
                write_record(self.run.folder, record_of(self.run, values))
            except OSError as error:  # the others of the group go on
                print(f"{self.run.name}: no record could be written: {error}", file=sys.stderr)
        self.verdict = self.verdict or verdict


class SupervisedCommand(SupervisedRun):
    """A command that is no training script: it ends as its process does, with all it started."""

    def __init__(self, run: Run, task: LocalTask | JobEnvironment, number: int) -> None:
        super().__init__(run, task, number)
        self.ranks = 1  # whatever it starts itself

    def _start_process(self, in_turns: bool) -> Popen:
        asked = self.run.launched
        dropped = (FOLDER_VARIABLE, "SUBMITIT_", "SLURM")  # it is no run of the course
        env = {key: value for key, value in os.environ.items() if not key.startswith(dropped)}
        env |= {COMMAND_VARIABLE: str(self.run.folder)}
        out, err = self.run.logs
        for place in (Path(asked["cwd"]), out.parent):
            if not place.is_dir():
                raise NotADirectoryError(f"{place}: gone since the job was submitted")
        with out.open("ab") as stdout, err.open("ab") as stderr, open(os.devnull) as nothing:
            streams = {"stdin": nothing, "stdout": stdout, "stderr": stderr}
            return Popen(
                asked["command"], cwd=asked["cwd"], env=env, start_new_session=True, **streams
            )

    def kill(self) -> None:
        """End the command, and what it started in whatever process group, not all at once."""
        if self._child is not None:
            end_command(self.run)
            self._child.wait()

    def give(self, verdict: Record) -> None:
        """Leave a record, and say in its own log that it did not end by itself."""
        if self.verdict is None and verdict.status in ("timeout", "cancelled"):
            with suppress(OSError), self.run.logs[1].open("a") as err:
                err.write(f"course: job {self.run.name} is ended: {verdict.error}\n")
        super().give(verdict)


def _unwritable(error: OSError) -> Record:
    if isinstance(error, NotADirectoryError):
        return Record("failed", error=str(error))
    return Record("failed", error=f"the run's folder cannot be written: {error}")


def _explain(status: str, asked: dict[str, Any]) -> str:
    if status == "timeout":
        return f"still running after its {asked['time_min']:g} minutes"
    return "cancelled on request" if status == "cancelled" else ""


if __name__ == "__main__":
    _, first_folder, rank, tasks, job = sys.argv
    supervise(first_folder, LocalTask(int(rank), int(tasks), job))
