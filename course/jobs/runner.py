"""This user's supervisor of local jobs: it works through the tickets of this machine's queue.

When the queue is empty, it waits for a while: PyTorch stays imported for the next job.
"""

from __future__ import annotations

import sys
import time
import traceback
from contextlib import nullcontext, suppress
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from course.jobs import local_queue
from course.jobs.processes import POLL_S, kill_left
from course.jobs.scripts import process_context
from course.jobs.supervise import Ended, Task, supervise
from course.runs.files import read_dict
from course.runs.record import write_record
from course.runs.run import Run, record_of

IDLE_S = 600.0  # the supervisor ends after this long without a job


def main() -> None:
    """Work through a queue: `python -c "from course.jobs.runner import main; main()" QUEUE NEEDS`.

    NEEDS is the digest of what this process was started with.
    """
    queue, suits = Path(sys.argv[1]), sys.argv[2]
    with local_queue.serving(queue) as is_ours:
        if not is_ours:
            return
        try:
            work(queue, suits)
        except Ended:
            return
    local_queue.start_runner(queue)  # for a job that has different needs, or arrived just now


def work(queue: Path, suits: str) -> None:
    """Run one job after another; return when idle, or when the next one has different needs."""
    context, last_job = None, time.monotonic()
    while time.monotonic() < last_job + IDLE_S and queue.exists():
        ticket = next(iter(local_queue.tickets(queue)), None)
        if ticket is None:
            time.sleep(POLL_S)
            continue
        if not (job := read_dict(ticket)):  # it was removed
            continue
        if local_queue.digest(job["needs"]) != suits:
            return
        try:
            if not Run(Path(job["folder"])).is_command:
                context = context or _preloaded()
            run_job(job, ticket.name, context)
        except Ended:
            raise
        except Exception as error:  # the other jobs go on
            traceback.print_exc()
            _record(Run(Path(job["folder"])), "lost", f"its supervisor failed: {error!r}")
        finally:
            ticket.unlink(missing_ok=True)
        last_job = time.monotonic()


def _preloaded() -> BaseContext:
    context = process_context(preload=True)
    first = context.Process(target=int)  # a job's time does not include importing PyTorch
    first.start()
    first.join()
    return context


def _record(job: Run, status: str, error: str) -> None:
    """Record the end of those runs of a job that have no record yet."""
    with suppress(OSError):  # a full disk: they are recorded as lost later
        for run in (run for run in job.together if not run.record):
            write_record(run.folder, record_of(run, {"status": status, "error": error}))


def run_job(job: dict[str, Any], number: str, context: BaseContext | None) -> None:
    """Run the job of a ticket, unless it is over, or began under a supervisor that was killed."""
    run = Run(Path(job["folder"]))
    runs = run.together
    if any(member.started for member in runs):
        kill_left(*runs)
        return
    ranks = range(job["tasks"])
    tasks = [Task(rank, job["tasks"], local_rank=rank, job_id=number) for rank in ranks]
    with local_queue.machine_turn() if job["shared"] else nullcontext():
        if run.launched and not all(member.record for member in runs):
            try:
                supervise(run, tasks, job["env"], context)
            except Ended:
                _record(run, "cancelled", "its supervisor was ended")
                raise
