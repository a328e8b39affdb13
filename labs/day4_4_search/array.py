"""A search on Slurm: one array of jobs, each of which makes trials until none is left."""

from __future__ import annotations

import math
import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from submitit import JobEnvironment

from course.jobs import sites, slurm, slurm_commands
from course.jobs.launch import enter
from course.jobs.sites import Site
from course.jobs.slurm_commands import Partition
from course.jobs.supervise import supervise
from course.runs.record import write_record
from course.runs.run import record_of, runs_root
from labs.day4_4_search import trial_queue

LATE_S = 60.0  # a trial may begin so late, as Slurm ends a job GRACE_MIN behind its time


def submit(folder: Path, most: int, workers: int) -> str:
    """Put an array of so many workers into the queue: its job id.

    Raises:
        ValueError: Slurm is not here, or refuses; the message says why.
    """
    place, trial_min = timed(folder, most / workers, slurm_commands.partitions())
    spare_min = place.time_min - trial_min
    arguments = [(str(folder), str(runs_root()), most, spare_min)] * workers
    return slurm.submit_calls(folder, {"gpus": 1}, place, work, arguments)["job_id"]


def timed(folder: Path, share: float, offers: list[Partition]) -> tuple[Site, float]:
    """The search's site with the time that a job of the array asks for, and that of a trial.

    A worker's share of the trials fits in, or as much of it as the partitions offer.
    """
    asked = trial_queue.about(folder)
    place = sites.get(asked["site"])
    trial_min = asked["time_min"] or place.time_min
    job_min = min(trial_min * math.ceil(share), slurm_commands.most_min(place, offers))
    return replace(place, time_min=max(trial_min, job_min)), trial_min


def work(folder: str, root: str, most: int, spare_min: float = math.inf) -> None:
    """What one job of the array does: one trial after another, each a run of its own.

    Args:
        spare_min: no trial begins later than so many minutes after the job: its end would not be
            the trial's, but the job's.
    """
    os.environ["COURSE_RUNS"] = root
    study, me = Path(folder), JobEnvironment().job_id
    latest = time.monotonic() + spare_min * 60 + LATE_S
    _put_back(study, me)
    begin = partial(enter, job=_found_by(me), job_folder=study)
    while time.monotonic() < latest and (run := trial_queue.take(study, most, begin, worker=me)):
        with suppress(SystemExit):  # which a job of one run ends with, where that has failed
            supervise(str(run.folder))
        if run.record is None:  # this job is to end
            return
        trial_queue.finish(study, run)


def _found_by(number: str) -> dict[str, Any]:
    from course.jobs import own_slurm

    own = {"cluster": str(own_slurm.folder())} if own_slurm.environment() else {}
    return {"job_id": number, **own}


def _put_back(study: Path, me: str) -> None:
    """Slurm began this job anew: what it was at is lost."""
    for run in trial_queue.heal(study, runs_root()):
        if run.launched["job_id"] == me:
            values = {"status": "lost", "error": "Slurm: its job was put back into the queue"}
            write_record(run.folder, record_of(run, values))
            trial_queue.finish(study, run)


def was_cancelled(number: str) -> bool:
    """Did somebody cancel a job of this array, by scancel for instance?"""
    done = slurm_commands.ask("sacct", "-X", "-n", "-P", "-j", number, "-o", "State")
    return done is not None and "CANCELLED" in done.stdout


def alive(folder: Path) -> bool:
    """Does any job of the search wait or compute, or does Slurm not answer just now?"""
    done = slurm_commands.ask(
        "squeue", "--noheader", "--me", "--format=%i", f"--name={folder.name}"
    )
    return done is None or done.returncode != 0 or bool(done.stdout.strip())
