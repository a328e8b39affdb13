"""What runs jobs: this machine, Slurm, or nothing, where runs were recorded. All do the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Protocol

from course.config import Config
from course.jobs import local, slurm
from course.jobs.sites import Site
from course.runs import recordings
from course.runs.run import Run


class Engine(Protocol):
    """What `launch`, `wait`, `cancel` and `queue` need of whatever runs jobs."""

    def answer(self, config: Config, request: dict[str, Any], site: Site, /) -> Run | None:
        """The run that a launch would be, if it is known without a job; None: submit one."""

    def submit(self, folder: Path, request: dict[str, Any], site: Site, /) -> dict[str, Any]:
        """Start the job of a run's folder: its job_id, and what else it is found by."""

    def batch_script(self, folder: Path, request: dict[str, Any], site: Site, /) -> str:
        """The text of that job."""

    def submitted(self, run: Run, /) -> str:
        """The text that a run's job really was submitted as; empty where there is none."""

    def is_alive(self, run: Run, /) -> bool:
        """Is the run's job there, or about to be?"""

    def ending(self, run: Run, /) -> tuple[str, str]:
        """How a run ended that left no record: status and error."""

    def call_off(self, run: Run, /) -> None:
        """Ask that a run be ended, before its record says so. Raises TimeoutError: no answer."""

    def stop(self, runs: Sequence[Run], /) -> None:
        """End runs whose records are written."""

    def kill_left(self, run: Run, /) -> None:
        """End whatever of the run's job is left."""

    def tell(self, runs: Iterable[Run], /) -> dict[str, dict[str, Any]]:
        """What is known of runs that wait or compute: state, reason, elapsed_s, nodes, by name."""


class Recorded:
    """Another machine, of which there are recordings: it answers with them, and starts nothing."""

    def answer(self, config: Config, request: dict[str, Any], site: Site) -> Run:
        """The run that was recorded with this config. Raises ValueError: there is none."""
        machine = site.name.removeprefix(recordings.SITE)
        return recordings.answer(machine, config, request["gpus"], request.get("added"))

    def submit(self, _folder: Path, _request: dict[str, Any], site: Site) -> dict[str, Any]:
        """Raise ValueError: there is nothing to submit to."""
        raise ValueError(f"site {site.name!r} starts no jobs: it answers with recorded runs")

    def batch_script(self, _folder: Path, _request: dict[str, Any], site: Site) -> str:
        """Raise ValueError: there would be no job."""
        raise ValueError(f"site {site.name!r} starts no jobs, so there is no batch script for it")

    def submitted(self, run: Run) -> str:
        """Raise ValueError: recordings are packed without it, as it names another's account."""
        raise ValueError(f"{run.name} ran on another machine, which left no batch script here")

    def is_alive(self, _run: Run) -> bool:
        """It was over when it was recorded."""
        return False

    def ending(self, run: Run) -> tuple[str, str]:
        """What its record says."""
        return run.status, run.record.error if run.record else ""

    def call_off(self, _run: Run | Sequence[Run]) -> None:
        """Nothing is left to be ended; nor is there for `stop` and `kill_left`."""

    stop = kill_left = call_off

    def tell(self, _runs: Iterable[Run]) -> dict[str, dict[str, Any]]:
        """None of them waits or computes."""
        return {}


_ENGINES: dict[str, Engine] = {"local": local, "slurm": slurm, "recorded": Recorded()}


def engine(executor: str) -> Engine:
    """The engine of a site's `executor`."""
    return _ENGINES[executor]


def engine_of(run: Run) -> Engine:
    """The engine that is asked about a run: of a recorded one, not the engine that it ran by."""
    return engine("recorded" if run.is_recorded else run.launched.get("executor", "local"))
