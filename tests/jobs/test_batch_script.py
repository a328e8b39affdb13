"""The batch script of a run: held as whole text, and refused before it would be in vain."""

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cases import for_all

from course.config import rung
from course.jobs import plan, sites, slurm_partitions
from course.jobs.batch_script import batch_script
from course.jobs.slurm_partitions import Partition
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
sbatch = ["hint=nomultithread", "reservation=my course", "exclusive"]
"""


@pytest.fixture
def own_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sites.toml"
    path.write_text(OWN)
    monkeypatch.setenv("COURSE_SITES", str(path))


def without_places(text: str, folder: Path) -> str:
    """What differs from machine to machine, by name."""
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
    asked = plan.plan("solutions/train.py", config, site=site, gpus=gpus, time_min=time_min)
    text = plan.preview("solutions/train.py", config, site=site, gpus=gpus, time_min=time_min)
    found = without_places(text, runs_root / asked.name).replace(asked.name, "RUN_NAME")
    golden = GOLDEN / f"{site}.sh"
    if os.environ.get("COURSE_WRITE_GOLDEN"):  # set it to write them anew, then read the diff
        golden.write_text(found)
    assert found == golden.read_text()
    assert not runs_root.exists()  # nothing was launched or made


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


@for_all(
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


OFFERS = [Partition("gpu", math.inf, "gpu:4"), Partition("short", 30, "gpu:4", is_default=True)]


def test_a_partition_that_is_not_there_lists_those_that_are() -> None:
    site = sites.Site("s", "slurm", partition="moon")
    with pytest.raises(ValueError, match="no partition 'moon' here: choose one of gpu, short"):
        slurm_partitions.check_partition(site, OFFERS)


def test_any_of_several_partitions() -> None:
    several = sites.Site("s", "slurm", partition="short,gpu", time_min=500)
    slurm_partitions.check_partition(several, OFFERS)
    with pytest.raises(ValueError, match="no partition 'moon' here"):
        slurm_partitions.check_partition(sites.Site("s", "slurm", partition="gpu,moon"), OFFERS)


@pytest.mark.parametrize("partition", ["short", ""])  # it is the default one
def test_a_time_that_the_partition_never_gives(partition: str) -> None:
    fitting = sites.Site("s", "slurm", partition=partition, time_min=28)
    slurm_partitions.check_partition(fitting, OFFERS)
    with pytest.raises(ValueError, match="time_min=29 is too long for partition 'short': .* 28"):
        slurm_partitions.check_partition(
            sites.Site("s", "slurm", partition=partition, time_min=29), OFFERS
        )
    slurm_partitions.check_partition(
        sites.Site("s", "slurm", partition="gpu", time_min=9999), OFFERS
    )


@for_all("gpus, shape", [(1, (1, 1)), (3, (1, 3)), (4, (1, 4)), (8, (2, 4))])
def test_nodes_and_tasks_of_a_job(gpus: int, shape: tuple[int, int]) -> None:
    assert sites.Site("s", "slurm", gpus_per_node=4, nodes=2).shape(gpus) == shape


@for_all("gpus", [-1, 0, 5, 6, 9, 12])
def test_gpus_that_fill_no_nodes_are_refused_with_the_valid(gpus: int) -> None:
    site = sites.Site("s", "slurm", gpus_per_node=4, nodes=2)
    with pytest.raises(ValueError, match=rf"gpus={gpus}: .* choose 1 to 4, or a multiple of 4 up"):
        site.check_gpus(gpus)


def test_a_run_of_this_machine_as_it_would_be_elsewhere(runs_root: Path, own_sites: None) -> None:
    folder = runs_root / "amp-1"
    folder.mkdir(parents=True)
    launched = '{"site": "local", "executor": "local", "gpus": 1, "time_min": 7}'
    (folder / "launch.json").write_text(launched)
    run = runs.Run(folder)
    assert f"-u {folder}/train.py" in plan.batch_script(run)
    there = plan.batch_script(run, site="jean-zay-v100")
    assert "#SBATCH --account=abc@v100\n" in there and "#SBATCH --time=9\n" in there
