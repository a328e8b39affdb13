"""What runs jobs: this machine, or Slurm. Each has the same functions."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from course.jobs import local, slurm
from course.jobs.sites import Site
from course.runs.run import Run


class Engine(Protocol):
    """What `launch`, `wait`, `cancel` and `queue` need of whatever runs jobs."""

    def submit(self, folder: Path, request: dict[str, Any], site: Site, /) -> dict[str, Any]:
        """Start the job of a run's folder: its job_id, and what else it is found by."""

    def batch_script(self, folder: Path, request: dict[str, Any], site: Site, /) -> str:
        """The text of that job."""

    def is_alive(self, run: Run, /) -> bool:
        """Is the run's job there, or about to be?"""

    def ending(self, run: Run, /) -> tuple[str, str]:
        """How a run ended that left no record: status and error."""

    def call_off(self, run: Run, /) -> None:
        """Ask that a run be ended, before its record says so. Raises TimeoutError: no answer."""

    def stop(self, run: Run, /) -> None:
        """End a run whose record is written."""

    def kill_left(self, run: Run, /) -> None:
        """End whatever of the run's job is left."""

    def tell(self, runs: Iterable[Run], /) -> dict[str, dict[str, Any]]:
        """What is known of runs that wait or compute: state, reason, elapsed_s, nodes, by name."""


_ENGINES: dict[str, Engine] = {"local": local, "slurm": slurm}


def engine(executor: str) -> Engine:
    """The engine of a site's `executor`."""
    return _ENGINES[executor]
