"""A search on Slurm: an array of jobs, each of which runs trials until none is left."""

from __future__ import annotations

import math
import os
import re
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import slurm_box
from course.jobs import Partition, Site, enter, sites, slurm, slurm_partitions
from course.jobs.scripts import process_context
from course.jobs.supervise import slurm_task, supervise_slurm
from course.runs import record_of, runs_root, write_record
from labs.search import trial_queue

LATE_S = 60.0  # a trial may begin this late, because Slurm ends a job GRACE_MIN after its limit


def submit(folder: Path, max_trials: int, workers: int) -> str:
    """Submit an array with this number of workers; return its job id.

    Raises:
        ValueError: Slurm is not available, or refuses; the message gives the reason.
    """
    site, trial_min = job_time(folder, max_trials / workers, slurm_partitions.partitions())
    spare_min = site.time_min - trial_min
    calls = [(str(folder), str(runs_root()), max_trials, spare_min)] * workers
    return slurm.submit_array(folder, {"gpus": 1}, site, work, calls)["job_id"]


def job_time(folder: Path, share: float, partitions: list[Partition]) -> tuple[Site, float]:
    """Return the search's site, with the time limit of a job of the array, and a trial's minutes.

    A job has time for its share of the trials, or for as many as the partitions allow.
    """
    request = trial_queue.read_request(folder)
    site = sites.get(request["site"])
    trial_min = request["time_min"] or site.time_min
    job_min = min(trial_min * math.ceil(share), slurm_partitions.most_min(site, partitions))
    return replace(site, time_min=max(trial_min, job_min)), trial_min


def work(folder: str, root: str, max_trials: int, spare_min: float) -> None:
    """Run one trial after another; this is what a job of the array does.

    Args:
        spare_min: no trial begins later than this many minutes after the job, because the end of
            the job would end it.
    """
    os.environ["COURSE_RUNS"] = root
    study, job_id = Path(folder), slurm_task().job_id
    latest = time.monotonic() + spare_min * 60 + LATE_S
    _record_lost_trials(study, job_id)
    begin = partial(enter, job=_job_of(job_id), job_folder=study)
    while time.monotonic() < latest and (
        run := trial_queue.take(study, max_trials, begin, worker=job_id)
    ):
        supervise_slurm(run, process_context(preload=False))
        if run.record is None:  # Slurm ends this job
            return
        trial_queue.finish(study, run)


def _job_of(job_id: str) -> dict[str, Any]:
    cluster = {"cluster": str(slurm_box.folder())} if slurm_box.environment() else {}
    return {"job_id": job_id, **cluster}


def _record_lost_trials(study: Path, job_id: str) -> None:
    """If Slurm restarted this job, record that the trial it was running is lost."""
    for run in trial_queue.finish_ended(study, runs_root()):
        if run.launched["job_id"] == job_id:
            values = {"status": "lost", "error": "Slurm: its job was put back into the queue"}
            write_record(run.folder, record_of(run, values))
            trial_queue.finish(study, run)


def was_cancelled(job_id: str) -> bool:
    """Return whether a job of this array was cancelled, for instance by scancel."""
    done = slurm_partitions.ask("sacct", "-X", "-n", "-P", "-j", job_id, "-o", "State")
    return done is not None and "CANCELLED" in done.stdout


def is_active(folder: Path) -> bool:
    """Return whether a job of the search is queued or runs, or Slurm does not answer now."""
    done = slurm_partitions.ask(
        "squeue", "--noheader", "--me", "--format=%i", f"--name={folder.name}"
    )
    return (
        done is None or done.returncode != 0 or bool(re.search(r"^\d", done.stdout, re.MULTILINE))
    )
