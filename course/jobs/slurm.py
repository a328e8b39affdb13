"""Slurm as a place for jobs: submitit's executor, squeue for what is alive, sacct for how it ended.

The functions are those of `course.jobs.local`. Where `course slurm up` runs a Slurm on this machine
and no other was chosen by SLURM_CONF, it is the one that is spoken to.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from course.config import Config
from course.jobs import own_slurm
from course.jobs.processes import job_environment
from course.jobs.sites import Site, user_file
from course.jobs.slurm_commands import (
    Partition,
    ask,
    check_partition,
    executor,
    partitions,
    seconds,
)
from course.jobs.slurm_commands import batch_script as batch_script
from course.runs import logs
from course.runs.logs import submitted as submitted
from course.runs.run import Run

FRESH_S = 2.0  # squeue is asked no more often, however many runs are waited for
CANCEL_S = 10.0  # so long is Slurm asked to cancel
ACCOUNTED_S = 10.0  # until sacct knows that a job is over
BEHIND_S = 60.0  # so long it may call a job alive that is not: accounting that was away is behind
OVER = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "oom",
    "FAILED": "failed",
}
ALIVE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING")
# The name last: only in it may there be a further bar.
FIELDS = "%i|%T|%r|%M|%D|%N|%j"
REASONS = {
    "None": "Slurm has not looked at it yet",
    "Priority": "others are before it",
    "Resources": "it waits for nodes or GPUs to become free",
    "DependencyNeverSatisfied": "what it waits for went wrong: it never starts, scancel ends it",
    "Dependency": "it waits for another job to end",
    "BeginTime": "it waits for a set time, as a job does that was put back into the queue",
    "JobHeld": "it is held back: scontrol release lets it go",
    "launch failed requeued held": "a node could not start it, perhaps because Slurm's "
    "controller had just ended: course slurm up releases it here, scontrol release elsewhere",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
    "Reservation": "it waits for its reservation to begin",
    "PartitionTimeLimit": "it asks for more time than the partition gives, and will not start",
    "PartitionNodeLimit": "it asks for more nodes than the partition gives, and will not start",
    "Partition": "the partition takes no jobs just now",
    "QOSMaxJobsPerUser": "you have as many jobs running as the QoS allows",
    "QOSMax": "you have reached a limit of the QoS",
    "QOSGrp": "the users of the QoS have together reached a limit of it",
    "AssocMaxJobs": "you have as many jobs running as your account allows",
    "Assoc": "a limit of your account is reached",
}  # of pending jobs: how squeue's word begins, and what it means; the first that fits counts
HERE = "run on a login node, or start a Slurm on this machine by course slurm up"
SILENT = "Slurm does not answer just now"
_asking = threading.Lock()
_seen: tuple[float, dict[str, list[str]] | None] = (-math.inf, None)


def answer(_config: Config, _request: dict[str, Any], _site: Site) -> None:
    """Nothing is known before a job has run."""


def submit(folder: Path, request: dict[str, Any], site: Site) -> dict[str, Any]:
    """Submit the job of a run's folder: its job_id.

    Raises:
        ValueError: Slurm's commands are not here, the partition is not, or Slurm refuses;
            the message says what there is.
    """
    from course.jobs.supervise import supervise

    return submit_calls(folder, request, site, supervise, [(str(folder),)])


def submit_calls(
    folder: Path,
    request: dict[str, Any],
    site: Site,
    call: Callable[..., Any],
    arguments: Sequence[tuple[Any, ...]],
) -> dict[str, Any]:
    """Submit a job that makes these calls of a function: an array, if they are several.

    Args:
        folder: its logs will lie there, and its name is the job's.

    Returns:
        job_id, of an array that of all its tasks, and the folder of this machine's own cluster.

    Raises:
        ValueError: as `submit`.
    """
    from submitit.core.utils import FailedJobError

    if not own_slurm.which("sbatch"):
        raise ValueError(f"site {site.name!r} needs Slurm, and there is no sbatch here: {HERE}")
    offers = partitions()
    check_partition(site, offers)
    made = executor(folder, request, site)
    try:
        with _submission_environment():
            first, *_ = made.map_array(call, *zip(*arguments))
    except FailedJobError as error:
        raise ValueError(_refused(error, offers, site, request)) from error
    _forget()
    own = {"cluster": str(own_slurm.folder())} if own_slurm.environment() else {}
    return {"job_id": first.job_id.partition("_")[0], **own}


def _refused(error: Exception, offers: list[Partition], site: Site, request: dict[str, Any]) -> str:
    """Why Slurm has not taken a job, and what there is."""
    if "configuration source" in str(error):
        return f"no Slurm answers here ({_reason(error)}): {HERE}"
    if not offers:
        return f"Slurm is slow to answer ({_reason(error)}): try again"
    there = "; ".join(each.told() for each in offers)
    return (
        f"Slurm refused the job: {_reason(error)}. Partitions here: {there}. What is asked "
        f"for stands in site {site.name!r} ({user_file()}) and in gpus={request['gpus']}"
    )


@contextmanager
def _submission_environment() -> Iterator[None]:
    """Submit to the chosen cluster, without the variables of an outer job.

    sbatch passes its environment on to the job, and submitit offers no way to change it.
    """
    before, wanted = dict(os.environ), job_environment() | own_slurm.environment()
    for name in before.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in wanted.keys() - before.keys():
            os.environ.pop(name, None)
        os.environ.update(before)


def _forget() -> None:
    """Ask squeue anew the next time."""
    global _seen
    with _asking:
        _seen = (-math.inf, None)


def is_alive(run: Run) -> bool:
    """Does the run's job wait or compute? Also where Slurm does not answer just now."""
    known, number = _jobs(), str(run.launched.get("job_id", ""))
    if not number:
        return run.is_being_submitted
    if known is None:
        return not _cluster_is_down(run)
    # Ids are reused after an accident, names are not.
    return number in known and known[number][-1] == run.job.name


def _cluster_is_down(run: Run) -> bool:
    """Was the run's job one of this machine's own Slurm, and has that been ended since?"""
    return run.launched.get("cluster") == str(own_slurm.folder()) and not own_slurm.environment()


def _jobs() -> dict[str, list[str]] | None:
    """This user's jobs that are not over, by id: the rest of FIELDS; None if Slurm is silent."""
    global _seen
    with _asking:  # a second thread that waits gets the same answer
        if time.monotonic() - _seen[0] > FRESH_S:
            done = ask("squeue", "--noheader", "--me", f"--format={FIELDS}")
            rows = None
            if done and done.returncode == 0:
                parts = FIELDS.count("|")
                rows = (line.split("|", parts) for line in done.stdout.splitlines())
                rows = {number: rest for number, *rest in rows}
            _seen = time.monotonic(), rows
        return _seen[1]


def ending(run: Run) -> tuple[str, str]:
    """How accounting says that a run's job ended, which left no record: status and error.

    "queued" where it is alive after all: Slurm had put it back into the queue.
    """
    if _cluster_is_down(run):
        return "lost", "the Slurm of this machine was ended meanwhile; course slurm up starts it"
    number, begun = str(run.launched.get("job_id", "")), time.monotonic()
    state = ""
    while time.monotonic() < begun + (BEHIND_S if state in ALIVE else ACCOUNTED_S):
        words = ("--noheader", "-P", "-X", "-j", number, "-o", "JobName,State,ExitCode,NodeList")
        done = ask("sacct", *words)
        if not done or (done.returncode and "disabled" not in done.stderr):
            return run.status, ""  # accounting is away: nobody can say, so ask again later
        rows = [line.split("|") for line in done.stdout.splitlines()]
        rows = [row for row in rows if row[0] == run.job.name]
        state = rows[-1][1].split()[0] if rows else ""
        if state and state not in ALIVE:
            told = f"Slurm: {rows[-1][1]}, exit code {rows[-1][2]}, on {rows[-1][3]}"
            verdict = OVER.get(state, "lost")
            asked_for = verdict in ("cancelled", "timeout")
            return verdict, told if asked_for else f"{told}\n{_last_words(run)}"
        if is_alive(run):
            return "queued", ""
        time.sleep(0.5)
    return "lost", f"Slurm does not know job {number} any more (its last word: {state or 'none'})"


def _last_words(run: Run) -> str:
    if not run.logs:
        return f"No log was written: does the node see {run.folder}? It must be on a shared disk."
    return logs.text(run, err=True, lines=8)


def call_off(run: Run) -> None:
    """Have Slurm end the run's job, waiting or computing.

    Raises:
        TimeoutError: Slurm does not answer.
    """
    others = [each for each in run.together if each != run]
    if run.job not in run.together or not all(each.record for each in others):
        return  # the job goes on for the others; its supervisor sees the verdict and ends this one
    deadline = time.monotonic() + CANCEL_S
    while is_alive(run):
        # By its name too: a launch that was interrupted does not know the job's number.
        done = ask("scancel", "--me", f"--name={run.job.name}", *_number(run))
        _forget()
        if done and not done.returncode:
            return
        if time.monotonic() > deadline:
            raise TimeoutError("Slurm does not answer; the job goes on. Try again")
        time.sleep(1)


def _number(run: Run) -> list[str]:
    return [str(run.launched["job_id"])] if "job_id" in run.launched else []


def stop(_runs: Sequence[Run]) -> None:
    """Nothing is left to do once Slurm has been asked."""


def kill_left(run: Run) -> None:
    """End what an interrupted launch may have left in the queue."""
    ask("scancel", "--me", f"--name={run.job.name}")
    _forget()


def _reason(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if "error:" in line]
    return " ".join(line.partition("error:")[2].strip() for line in lines) or str(error)


def tell(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """What Slurm says of runs, by name: state, reason, elapsed_s, nodes. One squeue for all.

    A run that Slurm does not know as waiting or computing is left out. Where it does not answer,
    the state is that of the run's own files, and the reason says so.
    """
    known, told = _jobs(), {}
    for run in runs:
        number = str(run.launched.get("job_id", ""))
        if run.is_being_submitted:
            told[run.name] = _row("pending", "it is being submitted")
        elif known is None and not _cluster_is_down(run):
            state = "running" if run.started else "pending"
            told[run.name] = _row(state, SILENT)
        elif known and number in known and known[number][-1] == run.job.name:
            state, reason, used, nodes, where, _ = known[number]
            said = f"on {where}" if where else _in_words(reason)
            told[run.name] = _row(state.lower(), said, _elapsed(used), int(nodes))
    return told


def _row(
    state: str, reason: str, elapsed_s: int | None = None, nodes: int | None = None
) -> dict[str, Any]:
    return {"state": state, "reason": reason, "elapsed_s": elapsed_s, "nodes": nodes}


def _in_words(reason: str) -> str:
    """Slurm's word for why a job waits, with what it means where that is known."""
    meaning = next((text for word, text in REASONS.items() if reason.startswith(word)), "")
    return f"{reason}: {meaning}" if meaning else reason


def _elapsed(used: str) -> int:
    passed_s = seconds(used)
    return 0 if math.isinf(passed_s) else int(passed_s)
