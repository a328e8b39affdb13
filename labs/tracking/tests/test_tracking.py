"""Tests of tables of runs, energy, CO2, and the commands of the habits."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from recorded_helpers import own_copy

from course.checks import discovery
from course.runs.recordings import recorded_runs
from course.runs.run import PROJECT, Run
from labs import tracking as lab

NOTEBOOK = discovery.notebook_of("tracking")
HABITS = dict(re.findall(r"\| (.+?) \| .+? \| `(.+?)` \|", NOTEBOOK.read_text()))


@pytest.fixture(scope="module")
def searched() -> list[Run]:
    return recorded_runs("nvidia-h100", "search")


def test_runs_are_selected_by_tags(searched: list[Run]) -> None:
    pruned = lab.select_by_tags(searched, "tpe-median", "cancelled")
    assert {run.launched["trial"]["study"] for run in pruned} == {"tpe-median"}
    assert {run.status for run in pruned} == {"cancelled"}
    with pytest.raises(ValueError, match="no run has the tags grid. Choose of .*tpe-median"):
        lab.select_by_tags(searched, "grid")


def test_the_table_has_only_settings_that_differ(searched: list[Run]) -> None:
    table = lab.runs_table(lab.select_by_tags(searched, "seeds"))
    assert "seed" in table and "lr" not in table
    assert table["val_top1"].is_monotonic_decreasing and sorted(table["seed"]) == [*range(16)]


def test_runs_without_validation_are_sorted_by_loss(searched: list[Run], tmp_path: Path) -> None:
    runs = [
        own_copy(run, tmp_path / str(loss), val_top1=None, last_loss=loss)
        for run, loss in zip(searched, (2.0, 1.0, 3.0))
    ]
    assert lab.runs_table(runs)["last_loss"].tolist() == [1, 2, 3]


def test_explained_shares() -> None:
    accuracies = [0.1, 0.2, 0.8, 0.9]
    table = pd.DataFrame({"val_top1": accuracies, "batch_size": [2, 2, 1, 1], "seed": [0, 1] * 2})
    shares = lab.explained_shares(table)
    assert shares.to_dict() == pytest.approx({"batch_size": 0.49 / 0.5, "seed": 0.01 / 0.5})


def test_the_dashboard_has_a_menu_of_tags_and_a_picture(searched: list[Run]) -> None:
    board = lab.dashboard(searched, "tpe-median")
    page = board._repr_mimebundle_()
    assert {"application/vnd.jupyter.widget-view+json", "text/html", "image/png"} <= {*page}
    assert "8 of 16 runs" in page["text/plain"] and "joules per image" in page["text/plain"]
    menu, picture = board.widget().children
    assert ("seeds", "seeds") in menu.options
    before = picture.value
    menu.value = "seeds"
    assert picture.value != before and "seed=" in picture.value


def test_a_dashboard_without_runs_or_energy(searched: list[Run], tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no run has trained yet"):
        lab.dashboard([])
    with pytest.raises(ValueError, match="no run has the tags mine. Choose of .*tpe-median"):
        lab.dashboard(searched, "mine")
    run = own_copy(searched[0], tmp_path / "uncounted", joules_per_image=None)
    assert "joules per image; 1: not measured" in lab.dashboard([run]).picture().alt


def test_energy_counts_all_gpus(searched: list[Run], tmp_path: Path) -> None:
    run = own_copy(searched[0], tmp_path / "counted", watts=500.0, wall_s=36.0, gpus=4)
    uncounted = own_copy(searched[1], tmp_path / "uncounted", watts=None)
    assert lab.joules(run) == 72_000
    with pytest.raises(ValueError, match=f"the joules of {uncounted.name} were not counted"):
        lab.carbon([run, uncounted], g_per_kwh=56)


def test_carbon_depends_on_grid_building_and_host(searched: list[Run], tmp_path: Path) -> None:
    run = own_copy(searched[0], tmp_path / "one", watts=1000.0, wall_s=3600.0, gpus=1)
    table = lab.carbon_by_grid(run, pue=1.5, host=1.2)
    sums = table[["gpus", "host", "building"]].sum(axis=1)
    assert sums.tolist() == pytest.approx((table["g_per_kwh"] * 1.8).tolist())
    assert f"Norway: {table['grams'][0]:.0f}" in lab.plot_grams(table).alt
    with pytest.raises(ValueError, match="expected g_per_kwh of 0 or more"):
        lab.carbon(run, g_per_kwh=1, pue=0.9)
    with pytest.raises(ValueError, match="pue=0.5"):
        lab.carbon_by_grid(run, pue=0.5, host=1.2)


@pytest.fixture
def shell(tmp_path: Path, searched: list[Run]) -> Path:
    """Create a learner's folder: two runs, and the scripts of the course."""
    for name, run in zip(("FIRST", "SECOND"), searched):
        own_copy(run, tmp_path / "runs" / name)
        (tmp_path / "runs" / name / "train.py").write_text(f"print({name!r})\n")
    weights = tmp_path / "runs" / "FIRST" / "weights.pt"
    weights.write_bytes(b"0" * 5000)
    os.utime(weights, (0, 0))
    (tmp_path / "runs" / "SECOND" / "weights.pt").write_bytes(b"0")
    (tmp_path / "solutions").symlink_to(PROJECT / "solutions")
    return tmp_path


def run_command(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    settings = {"PATH": path, "COURSE_RUNS": str(folder / "runs"), **variables}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.slow
def test_the_commands_of_the_habits(shell: Path) -> None:
    output = run_command(HABITS["code that can be compared"], shell)
    assert "-print('FIRST')\n+print('SECOND')" in output.stdout
    output = run_command(HABITS["tidy storage"], shell)
    assert output.stdout.split()[1::2] == ["runs/FIRST/weights.pt"]
    assert run_command(HABITS["results to share"], shell).returncode == 0
    result = json.loads((shell / "result.json").read_text())
    assert result["val_top1"] == Run(shell / "runs/FIRST").record.val_top1
    for habit in ("config as data", "profile before you buy GPUs"):
        command = HABITS[habit].removesuffix("--dry-run")
        output = run_command(f"{command} --dry-run", shell)
        assert output.returncode == 0, output.stderr
        assert "#SBATCH" in output.stdout or "python" in output.stdout
