"""The batch script of a run: compared as complete text, and refused if it could not work."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from course.config import rung
from course.jobs import plan, sites, slurm_partitions
from course.jobs.batch_script import batch_script
from course.runs import run as runs

GOLDEN = Path(__file__).parent.parent / "golden"
CONFIG = rung("baseline", quick=True)
OWN = """
[jean-zay-v100]
account = "abc@v100"

[jean-zay-v100-octo]
account = "abc@v100"
qos = "qos_gpu-dev"

[jean-zay-a100]
account = "abc@a100"
gpu_type = "a100"
sbatch = ["hint=nomultithread", "reservation=my course", "exclusive"]
"""


@pytest.fixture
def own_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(OWN)
    monkeypatch.setenv("COURSE_SITES", str(path))


def without_places(text: str, folder: Path) -> str:
    """Replace what differs from machine to machine by names."""
    return text.replace(str(folder), "RUN_FOLDER").replace(sys.executable, "PYTHON")


@pytest.mark.parametrize(
    "site, gpus, time_min",
    [
        ("slurm", 2, 5),
        ("jean-zay-v100", 8, None),
        ("jean-zay-v100-octo", 1, 20),
        ("jean-zay-a100", 16, 90.5),
        ("local", 2, None),
    ],
)
def test_the_whole_script(
    runs_root: Path, own_sites: None, site: str, gpus: int, time_min: float | None
) -> None:
    config = replace(CONFIG, batch_size=16)  # an image for each of 16 GPUs
    asked = plan.plan_run("solutions/train.py", config, site=site, gpus=gpus, time_min=time_min)
    text = plan.preview("solutions/train.py", config, site=site, gpus=gpus, time_min=time_min)
    found = without_places(text, runs_root / asked.name).replace(asked.name, "RUN_NAME")
    golden = GOLDEN / f"{site}.sh"
    if os.environ.get("COURSE_WRITE_GOLDEN"):  # set it to rewrite them, then read the diff
        golden.write_text(found)
    assert found == golden.read_text()
    assert not runs_root.exists()  # nothing was launched or created


def test_what_a_shell_reads_in_it_is_quoted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "it's; touch hacked #"
    monkeypatch.setenv("COURSE_RUNS", str(root))
    site = sites.Site("s", "slurm", account='x"; touch hacked; "', qos="$(touch hacked)")
    text = batch_script(root / "run", {"gpus": 1}, site)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    stub = "srun() { printf '%s\\n' \"$@\"; }\n"
    done = subprocess.run(
        ["bash", "-c", stub + "\n".join(lines)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stdout.splitlines()[-1] == str(root / "run" / "logs")
    assert not (tmp_path / "hacked").exists()


@pytest.mark.parametrize(
    "written, minutes",
    [
        ("infinite", math.inf),
        ("20:00:00", 1200),
        ("1-00:30:00", 1470),
        ("30:00", 30),
    ],
)
def test_times_as_slurm_writes_them(written: str, minutes: float) -> None:
    assert slurm_partitions.seconds(written) == minutes * 60


def test_a_run_of_this_machine_as_it_would_be_elsewhere(runs_root: Path, own_sites: None) -> None:
    folder = runs_root / "amp-1"
    folder.mkdir(parents=True)
    launched = '{"site": "local", "executor": "local", "gpus": 1, "time_min": 7}'
    (folder / "launch.json").write_text(launched)
    run = runs.Run(folder)
    assert f"-u {folder}/train.py" in plan.batch_script(run)
    there = plan.batch_script(run, site="jean-zay-v100")
    assert "#SBATCH --account=abc@v100\n" in there and "#SBATCH --time=9\n" in there
