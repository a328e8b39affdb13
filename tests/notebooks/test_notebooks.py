"""A few of the course's notebooks, executed as they are; `make notebooks` executes all of them."""

from pathlib import Path

import pytest
from job_helpers import nothing_left  # noqa: F401 - every test of this file ends its runs

from course.runs.run import all_runs
from tools import notebooks

pytestmark = pytest.mark.slow


def execute(name: str, **options: object) -> None:
    """Execute a notebook with the solution."""
    (outcome,) = notebooks.execute_all(notebooks.matching(name), cell_minutes=5, **options)
    assert outcome.status == "ok", f"{outcome.error}\nin cell {outcome.cell}"


def test_day_0_on_slurm(slurm: Path, runs_root: Path) -> None:
    execute("start_here", site="slurm", quick=True)
    assert {run.status for run in all_runs()} == {"ok", "cancelled", "timeout", "failed"}
    ended = [run for run in all_runs() if run.status == "ok"]
    assert all(run.launched["job_id"].isdigit() for run in ended)  # Slurm numbered them


def test_several_gpus_are_answered_from_recorded_runs(runs_root: Path) -> None:
    execute("scaling", site="recorded-nvidia-h200-x4")
    (launched,) = all_runs()  # it measures this machine's link
    assert launched.launched["script"].endswith("all_reduce.py")


@pytest.mark.long
def test_an_elective_with_its_blanks_open(runs_root: Path) -> None:
    execute("fast_step")
    assert not [*runs_root.glob("*/launch.json")]
