"""Run jobs on Slurm: submitit submits, squeue lists live jobs, sacct reports how they ended.

Without SLURM_CONF, commands go to the Slurm that `course slurm up` runs on this machine.
"""

from __future__ import annotations

import math
import re
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import slurm_box
from course.jobs.batch_script import UnknownJobError, environment, submit_job
from course.jobs.processes import job_environment
from course.jobs.sites import Site, user_file
from course.jobs.slurm_partitions import (
    Partition,
    ask,
    check_partition,
    columns,
    partitions,
    seconds,
)
from course.runs.run import Run
from slurm_box.cluster import programs

SQUEUE_INTERVAL_S = 2.0  # between two calls of squeue, however many runs are waited for
CANCEL_S = 10.0  # for attempts to cancel
ACCOUNTED_S = 10.0  # until sacct has the end of a job
BEHIND_S = 60.0  # sacct may list a finished job as alive for this long, if accounting was down
OVER = {
    "CANCELLED": "cancelled",
    "TIMEOUT": "timeout",
    "DEADLINE": "timeout",
    "OUT_OF_MEMORY": "oom",
    "FAILED": "failed",
}
KILLED = ("9:0", "0:9")  # exit codes of a job whose supervisor got a SIGKILL
ALIVE = ("PENDING", "RUNNING", "REQUEUED", "COMPLETING", "CONFIGURING", "SUSPENDED", "RESIZING")
# The name is last, because only a name can contain another bar.
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
    "PartitionConfig": "the partition does not allow such a job, and it will not start",
    "Partition": "the partition takes no jobs just now",
    "QOSMax": "you have reached a limit of the QoS",
    "QOSGrp": "the users of the QoS have together reached a limit of it",
    "Assoc": "a limit of your account is reached",
}  # pending jobs: prefix of squeue's reason, and its meaning; the first match counts
HERE = "run on a login node, or start a Slurm on this machine by course slurm up"
SILENT = "Slurm does not answer just now"
_asking = threading.Lock()
_answer: tuple[float, dict[str, list[str]] | None] = (-math.inf, None)


def submit(folder: Path, request: dict[str, Any], site: Site) -> dict[str, Any]:
    """Submit the job of a run's folder.

    Returns:
        job_id, and the folder of this machine's own cluster.

    Raises:
        ValueError: Slurm's commands or the partition are missing, Slurm would misread the folder's
            path, or it refuses; the message names what there is.
        UnknownJobError: sbatch printed no id; the job was cancelled by its name.
    """
    if not shutil.which("sbatch"):
        raise ValueError(f"site {site.name!r} needs Slurm, and there is no sbatch here: {HERE}")
    if misread := re.search(r"[%\\\x00-\x1f\udc80-\udcff]", str(folder)):
        raise ValueError(
            f"the folder {folder} has {misread[0]!r} in its path, which Slurm would not read as it "
            f"is (%j is a job's id): set COURSE_RUNS to a folder with a plain name"
        )
    offers = partitions()
    check_partition(site, offers)
    try:
        # A login node's limit on threads does not count in jobs.
        job = {k: v for k, v in job_environment().items() if not k.endswith("_NUM_THREADS")}
        with environment(job | slurm_box.environment()):
            number = submit_job(folder, request, site)
    except UnknownJobError as error:
        try:
            cancel(Run(folder))
        except TimeoutError:
            raise UnknownJobError(f"{error}. End it: scancel --name={folder.name}") from error
        raise UnknownJobError(f"{error}. The job was cancelled by its name") from error
    except RuntimeError as error:  # its message has sbatch's output
        # Slurm may have accepted the job, for instance if its answer was late.
        ask("scancel", "--me", f"--name={folder.name}")
        raise ValueError(_refusal(str(error), offers, site, request)) from error
    _forget()
    cluster = {"cluster": str(slurm_box.folder())} if slurm_box.environment() else {}
    return {"job_id": number, **cluster}


def _refusal(text: str, offers: list[Partition], site: Site, request: dict[str, Any]) -> str:
    """Return why Slurm refused a job, and which partitions there are."""
    lines = [line.partition("error:")[2].strip() for line in text.splitlines() if "error:" in line]
    reason = " ".join(lines) or text.strip()
    if "configuration source" in text:
        return f"no Slurm answers here ({reason}): {HERE}"
    if not offers:
        return f"Slurm is slow to answer ({reason}): try again"
    return (
        f"Slurm refused the job: {reason}. Partitions here: {'; '.join(map(str, offers))}. The "
        f"job's settings are in site {site.name!r} ({user_file()}), and gpus={request['gpus']}"
    )


def _forget() -> None:
    """Discard squeue's last answer, so that the next call queries it again."""
    global _answer
    with _asking:
        _answer = (-math.inf, None)


def is_alive(run: Run) -> bool:
    """Return whether the run's job waits or computes; True if Slurm does not answer."""
    known, number = _jobs(), str(run.launched.get("job_id", ""))
    if not number:
        return run.is_being_submitted
    if known is None:
        return not _cluster_is_down(run)
    # Ids are reused after a crash, names are not.
    return number in known and known[number][-1] == run.job.name


def _cluster_is_down(run: Run) -> bool:
    """Return whether this machine's own Slurm had the run's job, and has been stopped since."""
    cluster = run.launched.get("cluster")
    return bool(cluster) and not programs(Path(cluster))


def _jobs() -> dict[str, list[str]] | None:
    """Return the other FIELDS of this user's unfinished jobs, by id; None: no answer."""
    global _answer
    with _asking:  # a second thread that waits gets the same answer
        if time.monotonic() - _answer[0] > SQUEUE_INTERVAL_S:
            done = ask("squeue", "--noheader", "--me", f"--format={FIELDS}")
            rows = None
            if done and done.returncode == 0:
                rows = columns(done.stdout, FIELDS.count("|") + 1)
                rows = {number: rest for number, *rest in rows}
            _answer = time.monotonic(), rows
        return _answer[1]


def ending(run: Run) -> tuple[str, str]:
    """Return the status and error of a run without a record, from Slurm's accounting.

    "queued" if the job is alive after all, because Slurm requeued it.
    """
    if _cluster_is_down(run):
        return "lost", "the Slurm of this machine was ended meanwhile; course slurm up starts it"
    number, begun = str(run.launched.get("job_id", "")), time.monotonic()
    state = ""
    while time.monotonic() < begun + (BEHIND_S if state in ALIVE else ACCOUNTED_S):
        words = ("--noheader", "-P", "-X", "-j", number, "-o", "JobName,State,ExitCode,NodeList")
        done = ask("sacct", *words)
        if not done or (done.returncode and "disabled" not in done.stderr):
            return run.status, ""  # accounting is down: the next call may know more
        rows = [row for row in columns(done.stdout, 4) if row[0] == run.job.name]
        state = rows[-1][1].split()[0] if rows else ""
        if state and state not in ALIVE:
            if state == "FAILED":  # perhaps only because it is being requeued
                _forget()
                if is_alive(run):
                    return "queued", ""
            error = f"Slurm: {rows[-1][1]}, exit code {rows[-1][2]}, on {rows[-1][3]}"
            if state == "NODE_FAIL":
                error += ". A node does not answer: it is down, or its network is"
            status = OVER.get(state, "lost")
            if state == "FAILED" and rows[-1][2] in KILLED:
                status = "lost"
                error += ": its processes were killed (often: the system ran out of memory)"
            if status not in ("cancelled", "timeout"):
                error += f"\n{_last_words(run)}"
            return status, error
        if is_alive(run):
            return "queued", ""
        time.sleep(0.5)
    return "lost", f"Slurm has no job {number} any more (its last state: {state or 'none'})"


def _last_words(run: Run) -> str:
    if not run.logs:
        return f"No log was written: does the node see {run.folder}? It must be on a shared disk."
    return run.tail(err=True, lines=8)


def cancel(run: Run) -> None:
    """Request that Slurm end the run's job, whether it waits or computes.

    Raises:
        TimeoutError: Slurm does not answer.
    """
    number = [str(run.launched["job_id"])] if "job_id" in run.launched else []
    deadline = time.monotonic() + CANCEL_S
    while True:
        # By its name too: a launch that was interrupted does not know the job's number. At least
        # once, because the job of such a launch may enter the queue after the run seemed over.
        done = ask("scancel", "--me", f"--name={run.job.name}", *number)
        _forget()
        if (done and not done.returncode) or not is_alive(run):
            return
        if time.monotonic() > deadline:
            raise TimeoutError("Slurm does not answer; the job goes on. Try again")
        time.sleep(1)


def queue_states(runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
    """Return state, reason, elapsed_s and nodes of runs by name, from one call of squeue.

    A run that neither waits nor computes is left out. If Slurm does not answer, the state comes
    from the run's own files, and the reason is SILENT.
    """
    known, rows = _jobs(), {}
    for run in runs:
        number = str(run.launched.get("job_id", ""))
        if run.is_being_submitted:
            rows[run.name] = _row("pending", "it is being submitted")
        elif known is None and not _cluster_is_down(run):
            state = "running" if run.started else "pending"
            rows[run.name] = _row(state, SILENT)
        elif known and number in known and known[number][-1] == run.job.name:
            state, reason, used, nodes, where, _ = known[number]
            words = f"on {where}" if where else _explain(reason)
            used_s = seconds(used)
            used_s = int(used_s) if math.isfinite(used_s) else 0
            rows[run.name] = _row(state.lower(), words, used_s, int(nodes))
    return rows


def _row(
    state: str, reason: str, elapsed_s: int | None = None, nodes: int | None = None
) -> dict[str, Any]:
    return {"state": state, "reason": reason, "elapsed_s": elapsed_s, "nodes": nodes}


def _explain(reason: str) -> str:
    """Return Slurm's word for why a job waits, with its meaning if that is known."""
    meaning = next((text for word, text in REASONS.items() if reason.startswith(word)), "")
    return f"{reason}: {meaning}" if meaning else reason
