"""The body of a job: waits for its turn, runs the snapshot, and sees to it that a record is left.

It runs once on every task, under submitit, as the parent of the training process. So it can
tell what that process no longer can: that it was killed, or ran past its time.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from subprocess import Popen
from typing import Any

from filelock import Timeout
from submitit import JobEnvironment
from submitit.helpers import TorchDistributedEnvironment

from course import failures, logs, ranks, warm
from course.forks import Forked
from course.local import identity, is_first, machine_lock
from course.records import Record, write_atomically, write_record
from course.runs import Run, record_of

POLL_S = 0.2
EXIT_CODES = {"timeout": 124}  # as the command of that name has it
DUMP_MS = 1000  # for one attempt; there are two, and up to a second passes before the first
GRACE_S = 15.0  # for the processes that are left once the run's verdict is in


class Ended(Exception):
    """The run's verdict is in, or must be given now."""


def supervise(folder: str) -> None:
    """Run the snapshot in `folder` as this task of the job."""
    run, task = Run(Path(folder)), JobEnvironment()
    signal.signal(signal.SIGTERM, _cancelled)
    asked = run.launched
    by_slurm = asked.get("executor") == "slurm"
    if by_slurm:
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # submitit's warning before Slurm's limit
        _begin_anew(run, task)
    try:
        with nullcontext() if by_slurm else _turn(run, task.global_rank):
            deadline = time.monotonic() + asked["time_min"] * 60
            verdict = _own_words(run, task.global_rank, _train(run, task, deadline))
            if verdict.status == "ok":
                _wait_for_others(run, task, deadline)
    except OSError as error:
        verdict = Record("failed", error=f"the run's folder cannot be written: {error}")
    except Ended as end:
        if by_slurm and str(end) == "cancelled":
            if task.global_rank == 0:
                (run.folder / "started.json").unlink(missing_ok=True)
            return  # or preempted, and put back into the queue: accounting knows which
        verdict = Record(str(end), error=_explain(str(end), asked))
    if task.global_rank == 0 or verdict.status != "ok":
        started_at = run.started.get("started_at", asked.get("launched_at", ""))
        values = {"status": verdict.status, "error": verdict.error, "started_at": started_at}
        write_record(run.folder, record_of(run, values))
    if by_slurm and verdict.status != "ok":
        sys.exit(EXIT_CODES.get(verdict.status, 1))  # or accounting would call the job completed


def _begin_anew(run: Run, task: JobEnvironment) -> None:
    """Slurm restarts a job that it had preempted, or whose node went down: from the beginning."""
    if task.global_rank == 0 and int(os.environ.get("SLURM_RESTART_COUNT", 0)):
        for path in [*run.folder.glob("steps*.jsonl"), *run.folder.glob("rank*")]:
            path.unlink(missing_ok=True)


def _cancelled(*_: Any) -> None:
    raise Ended("cancelled")


@contextmanager
def _turn(run: Run, rank: int) -> Iterator[None]:
    """Wait until no other run computes on this machine: two at once would spoil both times."""
    if rank > 0:
        while not run.started:
            _leave_if_over(run)
            time.sleep(POLL_S)
        yield
        return
    lock = machine_lock()
    while not lock.is_locked:
        _leave_if_over(run)
        if not is_first(run):
            time.sleep(POLL_S)
            continue
        try:
            lock.acquire(timeout=POLL_S)
        except Timeout:  # a run of another runs folder computes
            continue
    try:
        yield
    finally:
        lock.release()


def _leave_if_over(run: Run) -> None:
    if record := run.record:
        raise Ended(record.status)


def _train(run: Run, task: JobEnvironment, deadline: float) -> Record:
    """Run the snapshot to its end. Whatever happens, its process does not outlive this one."""
    child = None
    try:
        with _sigterm_held():
            child = _start(run, task)
        return _watch(run, child, task.global_rank, deadline)
    finally:
        if child:
            _kill_group(child)


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


def _start(run: Run, task: JobEnvironment) -> Popen | Forked:
    TorchDistributedEnvironment().export(set_cuda_visible_devices=False, overwrite=True)
    env = os.environ | {"MASTER_ADDR": "127.0.0.1"}
    cores = (os.cpu_count() or 1) // task.num_tasks
    if run.launched.get("executor") == "slurm":
        # The address from which srun started the tasks: that of the first node, of rank 0.
        env["MASTER_ADDR"] = os.environ.get("SLURM_LAUNCH_NODE_IPADDR", "127.0.0.1")
        cores = int(os.environ.get("SLURM_CPUS_PER_TASK", cores))
    if task.num_tasks > 1:  # or each process would start a thread for every core
        env.setdefault("OMP_NUM_THREADS", str(max(1, cores)))
        # After a collective's timeout, NCCL's watchdog sleeps four times this before it ends the
        # process: by default a minute, for dumps of its flight recorder, which nobody reads here.
        env.setdefault("TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC", str(DUMP_MS))
    child = warm.start_script(run.script, cwd=run.folder, env=env)
    if task.global_rank == 0:
        started = {
            "host": task.hostname, "started_at": datetime.now().isoformat(timespec="seconds"),
            "supervisor": identity(os.getpid()),
        }  # fmt: skip
        try:
            write_atomically(run.folder / "started.json", json.dumps(started))
        except OSError:
            _kill_group(child)  # a run that nobody can see must not compute
            raise
    return child


def _watch(run: Run, child: Popen | Forked, rank: int, deadline: float) -> Record:
    """Wait for the child. What it is worth by its exit alone, should it leave no record."""
    verdict_since = None
    while (code := child.poll()) is None:
        now = time.monotonic()
        if now > deadline:
            raise Ended("timeout")
        if record := run.record:
            verdict_since = verdict_since or now
            if record.status == "cancelled" or now > verdict_since + GRACE_S:
                raise Ended(record.status)
        time.sleep(POLL_S)
    if code == 0:
        return Record("ok")
    if hung := ranks.hangs(run):
        return Record("failed", error=failures.in_the_words_of(rank, hung))
    last_words = logs.text(run, err=True, lines=20)
    if code > 0:
        return Record("failed", error=f"the script ended with code {code}\n{last_words}")
    why = " (often: the system ran out of memory)" if -code == signal.SIGKILL else ""
    name = signal.Signals(-code).name
    return Record("lost", error=f"the process was killed by {name}{why}\n{last_words}")


def _own_words(run: Run, rank: int, verdict: Record) -> Record:
    """How the script of a rank says itself that it failed, rather than the end of its log."""
    own = [each for each in run.ranks if each["rank"] == rank and each["error"]]
    if verdict.status != "failed" or not own:
        return verdict
    return Record(own[0]["status"], error=own[0]["error"])


def _wait_for_others(run: Run, task: JobEnvironment, deadline: float) -> None:
    """Rank 0 is not done before every rank is: one that fails later fails the run."""
    (run.folder / f"rank{task.global_rank}.done").touch()
    if task.global_rank == 0:
        while len(list(run.folder.glob("rank*.done"))) < task.num_tasks:
            _leave_if_over(run)
            if time.monotonic() > deadline:
                raise Ended("timeout")
            time.sleep(POLL_S)


def _kill_group(child: Popen | Forked) -> None:
    """End the training process and those it started, DataLoader workers for instance."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    child.wait()


def _explain(status: str, asked: dict[str, Any]) -> str:
    if status == "timeout":
        return f"still running after its {asked['time_min']:g} minutes"
    return "cancelled on request" if status == "cancelled" else ""
