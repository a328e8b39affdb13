"""Choose what runs jobs: this machine, Slurm, or nothing if the runs are recorded.

Each executor has the same functions, which `launch`, `wait`, `cancel` and `queue` call:

answer(config, request, site)        the run, if it is known without a job; None: submit one
submit(folder, request, site)        start the job of a run's folder; return its job_id and more
batch_script(folder, request, site)  the text of that job
submitted(run)                       the text that the job was submitted as; "" if there is none
is_alive(run)                        whether the job exists, or is about to
ending(run)                          status and error of a run that left no record
call_off(run)                        request the end of a run; TimeoutError: no answer
stop(runs)                           end runs whose records are written
withdraw(run)                        remove what an interrupted launch left in the queue
queue_states(runs)                   state, reason, elapsed_s, nodes of runs that wait or compute
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from course.config import Config
from course.jobs import local, slurm
from course.jobs.sites import Site
from course.runs import recordings
from course.runs.run import Run


class Recorded:
    """Answer launches with the recorded runs of another machine, and start nothing."""

    def answer(self, config: Config, request: dict[str, Any], site: Site) -> Run:
        """Return the run that was recorded with this config. Raises ValueError: there is none."""
        machine = site.name.removeprefix(recordings.SITE)
        return recordings.answer(machine, config, request["gpus"], request.get("added"))

    def batch_script(self, _folder: Path, _request: dict[str, Any], site: Site) -> str:
        """Raise ValueError: there would be no job."""
        raise ValueError(f"site {site.name!r} starts no jobs, so there is no batch script for it")

    submit = batch_script

    def submitted(self, run: Run) -> str:
        """Raise ValueError: recordings do not include it, because it names someone's account."""
        raise ValueError(f"{run.name} ran on another machine, which left no batch script here")

    def is_alive(self, _run: Run) -> bool:
        """Return False: a run is recorded only after its end."""
        return False

    def ending(self, run: Run) -> tuple[str, str]:
        """Return the status and error from its record."""
        return run.status, run.record.error if run.record else ""

    def call_off(self, _run: Run | Sequence[Run]) -> None:
        """Do nothing: a recorded run has already ended."""

    stop = withdraw = call_off

    def queue_states(self, _runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
        """Return {}: none of them waits or computes."""
        return {}


_ENGINES: dict[str, Any] = {"local": local, "slurm": slurm, "recorded": Recorded()}


def engine(executor: str) -> Any:
    """Return the engine for the jobs of a site with this `executor`."""
    return _ENGINES[executor]


def engine_of(run: Run) -> Any:
    """Return the engine of a run; for a recorded run, not the one on which it ran."""
    return engine(run.executor)
