"""The course's own notebooks, executed: on the real Slurm, and answered from recorded runs."""

from pathlib import Path

import pytest
from job_helpers import nothing_left, warm_up  # noqa: F401 - every test of this file ends its runs

from course.config import QUICK
from course.runs.run import PROJECT, Run
from course.workshop import rehearsal, rehearsal_page
from course.workshop.rehearsal import rehearse

pytestmark = pytest.mark.slow


def passes(
    name: str, script: str = "solutions/train.py", **how: object
) -> list[rehearsal_page.UsedRun]:
    """Execute a notebook against the solution: the runs that it used."""
    done = rehearse(rehearsal.matching(name), script=script, cell_minutes=5, **how)
    (outcome,) = done.outcomes
    assert outcome.status == "ok", f"{outcome.error}\nin cell {outcome.cell}"
    return list(outcome.runs)


FEW_IMAGES = """
from course.topics import large_batch
whole = large_batch.batches
large_batch.batches = lambda count, size: whole(count, min(size, 64))
"""


@pytest.fixture
def small_in_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a notebook launches or computes as quick has the tests' own sizes, too.

    The gradient's noise, and the sizes of updates, are looked at with a few images.
    """
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "small.py").write_text(
        f"from course import config\nfrom course.days import day3\n\nconfig.QUICK |= {QUICK!r}\n"
        f"day3.QUICK_CROPS = 1024\nday3.QUICK |= {{'val_images': 64}}\n{FEW_IMAGES}"
    )
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))


def test_day_0_on_slurm(slurm: Path, runs_root: Path, small_in_kernel: None) -> None:
    used = passes("day0_start_here", site="slurm", quick=True)
    assert {run.status for run in used} == {"ok", "cancelled", "timeout", "failed"}
    assert all(run.nodes.startswith("node") for run in used if run.status == "ok")


@pytest.mark.parametrize("name", ["day1_1_gpu", "day1_2_mixed_precision", "day1_4_profiler"])
def test_at_full_size_from_recorded_runs(name: str, runs_root: Path, small_in_kernel: None) -> None:
    passes(name, site="recorded-nvidia-h100", quick=False)
    assert not list(runs_root.glob("*/launch.json"))  # nothing was launched here


def test_two_ranks_at_full_size_from_recorded_runs(runs_root: Path) -> None:
    warm_up()
    used = passes("day2_2_data_parallel", site="recorded-nvidia-h200-x4", quick=False)
    assert {run.status for run in used} == {"failed"}  # on purpose
    # The rank that hangs runs here: of NCCL's end there is no record.
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]
    assert launched and not [run for run in launched if run.source == "solutions/train.py"]


@pytest.mark.parametrize("name", ["day2_3_scaling", "day2_4_communication"])
def test_several_gpus_answer_from_recorded_runs(name: str, runs_root: Path) -> None:
    passes(name, site="recorded-nvidia-h200-x4", quick=False)
    assert not [*runs_root.glob("*/launch.json")]  # variants of the script neither


def test_formats_from_recorded_runs(runs_root: Path) -> None:
    warm_up()
    used = passes("day3_1_formats", site="recorded-nvidia-h200", quick=False)
    assert {run.status for run in used} == {"ok"}
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # checks and the like
    assert launched and all(run.config.model == "resnet18" for run in launched)


def test_augmentation_answers_from_recorded_runs(runs_root: Path) -> None:
    passes("day3_2_augmentation", site="recorded-nvidia-h200", quick=False)
    assert not [*runs_root.glob("*/launch.json")]


def test_large_batches_from_recorded_runs_and_small_trainings(
    runs_root: Path, small_in_kernel: None
) -> None:
    warm_up()
    used = passes("day3_3_large_batch", site="recorded-nvidia-h200", quick=False)
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # these are live
    assert {run.status for run in used} == {"ok"} and len(launched) == 8
    assert {run.config.model for run in launched} == {"resnet18"}


UNWRITTEN = """
import pandas
import torch
from course.topics import compilation

compilation.made.BACKEND = "eager"
compilation.kernels = lambda *_: [compilation.recorded_kernel("nvidia-h200")]
compilation.carried = lambda *_: pandas.DataFrame({"cache": ["copied"], "seconds": [0.1]})
torch._inductor.aoti_compile_and_package = lambda program, package_path: torch.export.save(
    program, package_path
)
torch._inductor.aoti_load_package = lambda path: torch.export.load(path).module()
"""
NARROW = """
import sys

sys.path.insert(0, {folder!r})
import narrow

narrow.use(blocks=1)
narrow.leave_kernels()
"""


def test_compiler_from_recorded_runs_and_small_networks(
    tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Compiled graphs run on PyTorch's own kernels: C++ is looked at in tests of the subject."""
    startup = tmp_path / "ipython" / "profile_default" / "startup"
    startup.mkdir(parents=True)
    (startup / "small.py").write_text(UNWRITTEN)
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    script = tmp_path / "train.py"
    solution, end = (PROJECT / "solutions/train.py").read_text(), 'if __name__ == "__main__":'
    narrow = NARROW.format(folder=str(PROJECT / "tests" / "scripts"))
    script.write_text(solution.replace(end, narrow + end))
    warm_up()
    used = passes("day3_4_compile", script=str(script), site="recorded-nvidia-h200", quick=False)
    launched = [Run(path.parent) for path in runs_root.glob("*/launch.json")]  # the check's two
    assert {run.status for run in used} == {"ok"} and len(launched) == 2
    assert {run.config.model for run in launched} == {"resnet18"}
