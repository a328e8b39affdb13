"""A search on Slurm: one array of jobs, each of which makes trials until none is left."""

from __future__ import annotations

import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from submitit import JobEnvironment

from course.jobs import sites, slurm
from course.jobs.launch import enter
from course.jobs.slurm_commands import ask
from course.jobs.supervise import supervise
from course.jobs.trials import taking
from course.runs.record import write_record
from course.runs.run import record_of, runs_root


def submit(folder: Path, most: int, workers: int) -> str:
    """Put an array of so many workers into the queue: its job id.

    Raises:
        ValueError: Slurm is not here, or refuses; the message says why.
    """
    asked = taking.about(folder)
    place = sites.get(asked["site"])
    arguments = [(str(folder), str(runs_root()), most)] * workers
    return slurm.submit_calls(folder, {"gpus": 1}, place, work, arguments)["job_id"]


def work(folder: str, root: str, most: int) -> None:
    """What one job of the array does: one trial after another, each a run of its own."""
    os.environ["COURSE_RUNS"] = root
    study, me = Path(folder), JobEnvironment().job_id
    _put_back(study, me)
    begin = partial(enter, job=_found_by(me), job_folder=study)
    while run := taking.take(study, most, begin, worker=me):
        with suppress(SystemExit):  # which a job of one run ends with, where that has failed
            supervise(str(run.folder))
        if run.record is None:  # this job is to end
            return
        taking.finish(study, run)


def _found_by(number: str) -> dict[str, Any]:
    from course.jobs.cluster import control

    own = {"cluster": str(control.folder())} if control.environment() else {}
    return {"job_id": number, **own}


def _put_back(study: Path, me: str) -> None:
    """Slurm began this job anew: what it was at is lost."""
    for run in taking.heal(study, runs_root()):
        if run.launched["job_id"] == me:
            values = {"status": "lost", "error": "Slurm: its job was put back into the queue"}
            write_record(run.folder, record_of(run, values))
            taking.finish(study, run)


def alive(folder: Path) -> bool:
    """Does any job of the search wait or compute, or does Slurm not answer just now?"""
    done = ask("squeue", "--noheader", "--me", "--format=%i", f"--name={folder.name}")
    return done is None or done.returncode != 0 or bool(done.stdout.strip())
