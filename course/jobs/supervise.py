"""Supervise a job: start its scripts, watch them, and leave a record of how each run ended.

On this machine one supervisor has all ranks of a job (`course.jobs.runner`); on Slurm each task
has one. It is the only one that can record that a script was killed, or ran past its time.
"""

from __future__ import annotations

import json
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from pkgutil import resolve_name
from random import Random
from typing import Any

from course.jobs.conductor import Conductor, start_turns
from course.jobs.processes import identity, loopback
from course.jobs.rank_store import start_store
from course.jobs.scripts import (
    FORK_SERVER_ENDED,
    PROBE_PLAN,
    Surroundings,
    fork_server_has_ended,
    process_context,
    run_script,
)
from course.runs import failures, ranks
from course.runs.files import write_atomically
from course.runs.record import Record, write_record
from course.runs.restarts import CHECKPOINTS, EPOCHS, GO_ON, interruptions, step_of
from course.runs.run import ENDED, FOLDER_VARIABLE, OBJECT_KEY, OPEN, TAKES_TURNS, Run, record_of
from course.runs.scripts import calls
from course.training import hooks
from course.training.attempts import attempt
from trainspeed.resources import core_count, usable_cores

WATCH_S = 0.2  # between two checks, rare enough not to disturb the runs that are timed
EXIT_CODES = {"timeout": 124}  # as the `timeout` command returns
DUMP_MS = 1000  # for one attempt; there are two, and up to a second passes before the first
# For a last checkpoint when the job must end, before `local.end_processes` or Slurm kills it.
SAVE_S = {"local": 8.0, "slurm": 600.0}
SKEW_S = 60.0  # between the limits of a job's tasks, which do not start at the same time
GRACE_S = 15.0  # for the processes that are left once a run has its record
TRACEBACK_LINES = 200  # of a log, to search for the script's line
PORTS = range(22_000, 32_000)  # of Slurm's ranks: below those that Linux assigns to connections


@dataclass(frozen=True)
class Task:
    """A task of a job: one rank of each of its runs."""

    rank: int
    count: int  # of tasks in the job
    local_rank: int
    job_id: str
    nodes: int = 1


def slurm_task() -> Task:
    """Return the task of Slurm that this process belongs to."""
    from submitit import JobEnvironment

    job = JobEnvironment()
    return Task(job.global_rank, job.num_tasks, job.local_rank, job.job_id, job.num_nodes)


class Ended(BaseException):  # so that no handler of errors takes it for one
    """This supervisor was asked to end."""


class OutOfTime(Ended):
    """The job's time is over, and its run can continue in another job."""


def supervise_task(folder: str) -> None:
    """Run the job of a run's folder as a task of Slurm; submitit calls this."""
    status = supervise_slurm(Run(Path(folder)), process_context(preload=False))
    if status not in ("ok", ""):  # or accounting would call the job completed
        sys.exit(EXIT_CODES.get(status, 1))


def supervise_slurm(first: Run, context: BaseContext) -> str:
    """Run the job of this Slurm step, and return how its first run ended; "": it goes on later."""
    task = slurm_task()
    if task.rank == 0 and int(os.environ.get("SLURM_RESTART_COUNT", 0)):
        _clear_earlier_attempt(first.together)
    saved_before = _saved_step(first)
    try:
        members = supervise(first, [task], dict(os.environ), context)
    except Ended as reason:  # or preempted and requeued: accounting has the reason
        if task.rank == 0 and isinstance(reason, OutOfTime):
            is_further = _saved_step(first) > saved_before  # or it would be requeued forever
            if not (first.record or (is_further and _requeue(task.job_id))):
                values = {"status": "timeout", "error": _timeout_error(first)}
                write_record(first.folder, record_of(first, values))
                return "timeout"
        for run in first.together:
            if task.rank == 0 and not run.record:
                (run.folder / "started.json").unlink(missing_ok=True)
        return ""
    statuses = [member.verdict.status for member in members if member.verdict]
    return "ok" if "ok" in statuses else next(iter(statuses), "")


def supervise(
    first: Run, tasks: Sequence[Task], env: dict[str, str], context: BaseContext | None
) -> list[SupervisedRank]:
    """Run a job's scripts until they end.

    Args:
        first: the run in whose folder the job's logs are; runs of its group take turns with it.
        tasks: those of this supervisor.
        env: the scripts' environment.
        context: starts the scripts; a command needs none.

    Raises:
        Ended: this process got a SIGTERM. No script is left.
    """
    before = signal.signal(signal.SIGTERM, _end)
    hurries: list[int] = []  # not empty after a SIGUSR1, which announces the end of the job's time
    usr1_before = signal.signal(signal.SIGUSR1, lambda number, _: hurries.append(number))
    members: list[SupervisedRank] = []
    for number, run in enumerate(first.together):
        rank_0 = None
        for task in tasks:
            if task.rank < run.gpus:
                kind = run.launched.get("supervisor")  # of a command
                supervised = resolve_name(kind) if kind else SupervisedRank
                members.append(supervised(run, task, number, env, context, rank_0))
                rank_0 = rank_0 or members[-1]
    try:
        _compute(members, tasks, hurries)
    finally:
        signal.signal(signal.SIGTERM, before)
        signal.signal(signal.SIGUSR1, usr1_before)
    return members


def _clear_earlier_attempt(runs: Sequence[Run]) -> None:
    """Remove what is left of an attempt that Slurm preempted, or whose node went down."""
    for run in runs:
        if run.record:
            continue
        # A run that saves resumes from its checkpoint, and keeps its earlier steps itself.
        steps = [] if _saves(run) else [*run.folder.glob("steps*.jsonl"), run.folder / EPOCHS]
        for path in [*steps, *run.folder.glob("rank*"), run.folder / "started.json"]:
            path.unlink(missing_ok=True)


def _saves(run: Run) -> bool:
    """Return whether the run writes checkpoints, so that it can go on from one."""
    return not run.is_command and run.config.save_every > 0


def _saved_step(run: Run) -> int:
    """Return the step of the run's last checkpoint; 0 without one."""
    paths = (run.folder / CHECKPOINTS).glob("[!.]*")
    return max((step_of(path) or 0 for path in paths), default=0)


def _requeue(job_id: str) -> bool:
    """Put the job back into Slurm's queue, which ends it here; return whether Slurm accepts."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    answer = subprocess.run(["scontrol", "requeue", job_id], capture_output=True, text=True)
    if not answer.returncode:
        signal.sigtimedwait([signal.SIGTERM], GRACE_S)  # until then, the job has not ended
        return True
    print(f"Slurm does not requeue job {job_id}: {answer.stderr.strip()}")
    return False


def _timeout_error(run: Run) -> str:
    text = f"still running after its {run.launched['time_min']:g} minutes"
    return text + ". Launch it again: it continues from its last checkpoint" * _saves(run)


def _end(*_: Any) -> None:
    raise Ended


def _compute(
    members: Sequence[SupervisedRank], tasks: Sequence[Task], hurries: Sequence[int]
) -> None:
    """Run the members' scripts until they end. Whatever happens, none outlives this call."""
    began = time.monotonic()
    deadline = began + members[0].run.launched["time_min"] * 60
    has_rank_0 = tasks[0].rank == 0
    conductor = start_turns(members[0].run, members[0].context) if has_rank_0 else None
    waiting, running = [*members], []
    try:
        while waiting or running:
            for member in [*waiting]:
                if member.run.record:
                    waiting.remove(member)
                    if conductor and member.rank == 0:
                        conductor.end(member.run, member.run.record.status)
                    continue
                current = (running or waiting)[0].run
                is_next = conductor or not has_rank_0 or member.run == current
                if is_next and member.may_begin():
                    waiting.remove(member)
                    running.append(member)
                    with _sigterm_held():
                        member.start(conductor)
            for member in [*running]:
                left_s = deadline - time.monotonic()
                is_late = left_s < 0 or (hurries and _saves(member.run))
                # Another rank's time may be over a moment earlier, and then all have saved.
                if member.can_requeue and (is_late or (left_s < SKEW_S and member.has_saved)):
                    raise OutOfTime
                if member.is_over(-math.inf if is_late else deadline):
                    running.remove(member)
                    if conductor and member.rank == 0:
                        conductor.end(member.run, member.verdict.status)
            if waiting or running:  # check a short job more often, so that it ends promptly
                time.sleep(min(WATCH_S, (time.monotonic() - began) / 10))
    finally:
        with _sigterm_held(raises=False):
            for member in running:
                member.ask_to_save()
            for member in running:
                member.end()


@contextmanager
def _sigterm_held(*, raises: bool = True) -> Iterator[None]:
    """Delay a SIGTERM: otherwise a process that is just being started would be left behind."""
    held: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: held.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    if held and raises:
        raise Ended


def simulated_host(run: Run, rank: int) -> dict[str, str]:
    """Return the variables that put a rank on one of the config's simulated hosts.

    NCCL connects ranks with different ids by its network transport, here sockets over loopback. It
    reports this in a file, which becomes evidence.
    """
    if run.config.hosts == 1:
        return {}
    return {
        "NCCL_HOSTID": f"host{rank * run.config.hosts // run.gpus}",
        "NCCL_SOCKET_IFNAME": loopback(),
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_FILE": str(run.folder / f"nccl-{rank}.txt"),
    }


class SupervisedRank:
    """A rank of a run: its process, and its verdict on how the run ended."""

    def __init__(
        self,
        run: Run,
        task: Task,
        number: int,
        env: dict[str, str],
        context: BaseContext | None,
        rank_0: SupervisedRank | None,
    ) -> None:
        self.run, self.number, self.context = run, number, context
        self.rank = task.rank
        self.ranks = 1 if run.is_command else run.gpus  # a command starts its ranks itself
        self.verdict: Record | None = None
        self._task, self._env = task, env
        self._rank_0 = rank_0  # of this run, if this supervisor has it
        self._executor = run.executor
        self._conductor: Conductor | None = None
        self._child: BaseProcess | None = None
        self._store: BaseProcess | None = None  # of a local run's ranks, in rank 0
        self._port = 0  # of this store
        self._starts = 0  # of the training process so far
        self._interruptions = 0  # planted ones, so far
        self._must_restart = False
        self._has_finished = False  # this rank, without an error
        self._verdict_since = 0.0  # when a record appeared, if the process goes on
        names = run.launched.get("observers", []) if self.rank == 0 else []
        self._observers = [hooks.load(name)(run) for name in names]

    def may_begin(self) -> bool:
        """Return whether rank 0 has begun this start of the run, and the others may follow."""
        if self.rank == 0:
            return True
        if self._rank_0:
            return self._rank_0._starts > self._starts
        return len(self.run.together) == 1 or bool(self.run.started)  # rank 0 chooses the order

    def start(self, conductor: Conductor | None) -> None:
        """Start the training process, and note that the run has begun."""
        self._conductor = conductor
        try:
            self._begin()
        except OSError as error:  # a run that no one can see must not compute
            self.kill()
            self.write_verdict(_unwritable(error))

    def _begin(self) -> None:
        """Start the process, and write host, pids and time to started.json."""
        # Before the process starts: the record of a short script needs the time.
        writes_start = self.rank == 0 or self._executor == "local"
        path, since = self.run.folder / "started.json", time.time()
        started = self.run.started or {
            "host": socket.gethostname(),
            "supervisor": identity(os.getpid()),
            "started_at": datetime.now().isoformat(timespec="seconds"),
            "processes": [],
            "takes_turns": bool(self._conductor),
        }
        if writes_start:
            write_atomically(path, json.dumps(started))
        self._child = self._start_process()
        self._starts += 1
        if writes_start:
            started["processes"].append([self._child.pid, since])
            write_atomically(path, json.dumps(started))

    def _start_process(self) -> BaseProcess:
        out = err = None
        if self._executor == "local" or self.run != self.run.job:
            # The other log files of a Slurm job are those of the run in whose folder they are.
            folder = self.run.folder / "logs"
            folder.mkdir(exist_ok=True)
            stem = f"{self._task.job_id}_{self.rank}_log"
            out, err = folder / f"{stem}.out", folder / f"{stem}.err"
        launched = self.run.launched
        folder, modules, env = self.run.folder, None, self._environment()
        if (arguments := launched.get("arguments")) is not None:
            folder, modules = Path(launched["folder"]), Path(launched["script"]).parent
            env[PROBE_PLAN] = json.dumps({"folder": str(self.run.folder), "traced": 0})
        surroundings = Surroundings(env, folder, out, err, modules)
        is_conducted = self._conductor and self.rank == 0
        connection = self._conductor.connect(self.run) if is_conducted else None
        process = self.context.Process(
            target=run_script, args=(self.run.script, surroundings, arguments or (), connection)
        )
        process.start()
        if connection:
            connection.close()  # otherwise the conductor would not notice the process's end
        return process

    def _environment(self) -> dict[str, str]:
        on_node = min(self.ranks, self._task.count // self._task.nodes)
        env = self._env | {
            **self._meeting_point(),
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self._task.local_rank),
            "WORLD_SIZE": str(self.ranks),
            "LOCAL_WORLD_SIZE": str(on_node),
            FOLDER_VARIABLE: str(self.run.folder),
            TAKES_TURNS: "1" if self.run.started.get("takes_turns") else "",
            **simulated_host(self.run, self.rank),
        }
        if self.run.config.device == "cpu":
            env["CUDA_VISIBLE_DEVICES"] = ""  # or PyTorch joins ranks on the CPU through NCCL
        has_quota = core_count() < len(usable_cores())
        cores = core_count() // self.ranks
        if self._executor == "slurm":
            cores = int(env.get("SLURM_CPUS_PER_TASK", cores))
        if self.ranks > 1 or self._executor == "slurm" or has_quota:
            # Or each process would start a thread for every core of the machine.
            env.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
        if self.ranks > 1:
            # After a collective's timeout, NCCL's watchdog sleeps four times this before it ends
            # the process, by default a minute, for dumps that nothing reads here.
            env.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", str(DUMP_MS))
        return env

    def _meeting_point(self) -> dict[str, str]:
        """Return variables for the ranks' rendezvous, new at each start, never an outer job's."""
        if self._executor == "slurm":  # each run of the job has a process group
            secret = (self.run.job.folder / OBJECT_KEY).read_text()  # or others could listen first
            restart = os.environ.get("SLURM_RESTART_COUNT", "")
            port = Random(secret + restart).choice(PORTS) + self.number  # the same in all tasks
            return {"MASTER_ADDR": os.environ["SLURM_LAUNCH_NODE_IPADDR"], "MASTER_PORT": str(port)}
        variables = {"MASTER_ADDR": "127.0.0.1", "GLOO_SOCKET_IFNAME": loopback()}
        if self.rank == 0 and self.ranks > 1:
            self._end_store()
            self._store, self._port = start_store(self.context)
        if self.ranks > 1:  # torchrun's variable: rank 0 expects a store there, and starts none
            variables["TORCHELASTIC_USE_AGENT_STORE"] = "True"
        return variables | {"MASTER_PORT": str((self._rank_0 or self)._port)}

    def _end_store(self) -> None:
        if self._store:
            self._store.kill()
            self._store.join()

    @property
    def can_requeue(self) -> bool:
        """Whether the run may continue in another job when this one's time is over."""
        is_alone = self._executor == "slurm" and len(self.run.together) == 1
        return is_alone and _saves(self.run) and self._child.exitcode in (None, GO_ON)

    @property
    def has_saved(self) -> bool:
        """Whether its process has saved and ended, so that another continues."""
        return self._child.exitcode == GO_ON

    def is_over(self, deadline: float) -> bool:
        """Return whether the run has ended here; then it has a verdict, and no process is left."""
        try:
            verdict = self.verdict or self._find_verdict(deadline)
        except OSError as error:
            verdict = _unwritable(error)
        if verdict is None:
            return False
        self.ask_to_save()  # if it has not ended by itself
        self.end()
        for observer in self._observers:
            attempt(f"the result of {type(observer).__name__}", observer.end)
        self.write_verdict(verdict)
        return True

    def _find_verdict(self, deadline: float) -> Record | None:
        """Return the verdict from the current state; None: the run goes on."""
        for observer in self._observers:
            attempt(f"the result of {type(observer).__name__}", observer.look)
        now, record, code = time.monotonic(), self.run.record, self._child.exitcode
        if now > deadline:
            return self.stopped("timeout")
        if code is None:
            if record:
                self._verdict_since = self._verdict_since or now
            lingers = record and now > self._verdict_since + GRACE_S
            cancelled = record and record.status == "cancelled"
            return self.stopped(record.status) if lingers or cancelled else None
        if not record and (self._must_restart or self._goes_on(code)):
            self._must_restart = not self.may_begin()
            if not self._must_restart:
                self._begin()
            return None
        if code:
            return self._failure(code)
        if error := self._ended_early(record):
            return Record("failed", error=f"rank {self.rank}: " * (self.ranks > 1) + error)
        return self._with_others(record)

    def _ended_early(self, record: Record | None) -> str:
        """Return an error if a script ended with code 0 before its recorder noticed; else ""."""
        folder = self.run.folder
        if self.run.is_command or record or (folder / ENDED.format(rank=self.rank)).exists():
            return ""
        if (folder / OPEN.format(rank=self.rank)).exists():
            steps = self.run.rank_steps(self.rank)
            where = f"in step {steps['step'].max() + 1 if len(steps) else 0} of "
            where += str(self.run.total_steps)
            error = failures.ended_early(where, is_exit=True)
            return f"{error}. The steps of its last second may be missing in this count"
        if calls(self.run.script.read_text(), "recording"):
            return failures.ended_early("before its first step", is_exit=True)
        return ""  # without a recorder, a script may do anything

    def _goes_on(self, code: int) -> bool:
        """Return whether the process ended before the run did, so that another must continue."""
        planted = len(interruptions(self.run.folder))
        was_planted, self._interruptions = planted > self._interruptions, planted
        return (code == GO_ON and _saves(self.run)) or (was_planted and code != 0)

    def stopped(self, status: str) -> Record:
        """Return the record of a run that was stopped, with the reason."""
        reasons = {"timeout": _timeout_error(self.run), "cancelled": "cancelled on request"}
        return Record(status, error=reasons.get(status, ""))

    def _failure(self, code: int) -> Record:
        """Return the verdict by a process's exit code, for a run that leaves no record."""
        last_words = self.run.tail(err=True, lines=20)
        if code == FORK_SERVER_ENDED and fork_server_has_ended():
            return Record("lost", error=f"{failures.FORK_SERVER}\n{last_words}")
        if hung := ranks.hangs(self.run):
            verdict = Record("failed", error=failures.describe_hangs(self.rank, hung))
        elif code < 0:
            why = " (often: the system ran out of memory)" if -code == signal.SIGKILL else ""
            name = signal.Signals(-code).name
            return Record("lost", error=f"the process was killed by {name}{why}\n{last_words}")
        else:
            headline = f"the script ended with code {code}"
            if lines := last_words.strip().splitlines():  # Python prints the exception last
                headline = f"{lines[-1]} ({headline})"
            place = failures.place_in(self.run.tail(err=True, lines=TRACEBACK_LINES))
            if place and failures.fault_of(last_words) in ("", "environment"):
                headline += f" {place}"
            if explanation := failures.advice(last_words):
                headline += f". {explanation}"
            verdict = Record("failed", error=f"{headline}\n{last_words}")
        for report in self.run.ranks:  # what this rank's script recorded, instead of its log's end
            if report["rank"] == self.rank and report["error"]:
                return Record(report["status"], error=report["error"])
        return verdict

    def _with_others(self, record: Record | None) -> Record | None:
        """Let rank 0 wait for every rank: one that fails later fails the run."""
        if not self._has_finished:
            (self.run.folder / f"rank{self.rank}.done").touch()
            self._has_finished = True
        if self.rank > 0 or len(list(self.run.folder.glob("rank*.done"))) == self.ranks:
            return Record("ok")
        return self.stopped(record.status) if record and record.status != "ok" else None

    def ask_to_save(self) -> None:
        """Send SIGTERM to a process that can write a checkpoint and resume later."""
        if self._child is not None and _saves(self.run):
            self._child.terminate()

    def end(self) -> None:
        """End the process; one that saves has SAVE_S to do so."""
        if self._child is not None and _saves(self.run):
            deadline = time.monotonic() + SAVE_S[self._executor]
            while self._child.is_alive() and time.monotonic() < deadline:
                self._child.join(1.0)
                self._child.terminate()  # it may have been too young for the first signal
        self.kill()

    def kill(self) -> None:
        """End the training process and those it started, DataLoader workers for instance."""
        self._end_store()
        if self._child is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.kill()  # it may not lead a group yet
        self._child.join()

    def write_verdict(self, verdict: Record) -> None:
        """Write a record unless there is one: the first verdict counts."""
        if self.verdict is None and (self.rank == 0 or verdict.status != "ok"):
            values = {"status": verdict.status, "error": verdict.error}
            try:
                write_record(self.run.folder, record_of(self.run, values))
            except OSError as error:  # the others of the group go on
                print(f"{self.run.name}: no record could be written: {error}", file=sys.stderr)
        self.verdict = self.verdict or verdict


def _unwritable(error: OSError) -> Record:
    return Record("failed", error=f"{failures.UNWRITABLE}: {error}")
