"""Many runs: found by tags, set side by side, and counted in joules and grams."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
from job_helpers import eventually, slurm_says
from recorded_helpers import own_copy

from course.jobs import own_slurm
from course.jobs import slurm as slurm_jobs
from course.runs.recordings import recorded_runs
from course.runs.run import PROJECT, Run
from labs import day4_5_practice as tracking

HABITS = tracking.habits().set_index("habit")["command"]


@pytest.fixture(scope="module")
def searched() -> list[Run]:
    return recorded_runs("nvidia-h100", "search")


def test_tags_find_runs_and_a_wrong_one_is_told(searched: list[Run]) -> None:
    pruned = tracking.tagged(searched, "tpe-median", "cancelled")
    assert {run.launched["trial"]["study"] for run in pruned} == {"tpe-median"}
    assert {run.status for run in pruned} == {"cancelled"}
    assert tracking.tagged(searched) == searched
    with pytest.raises(ValueError, match="no run has the tags grid: there are .*tpe-median"):
        tracking.tagged(searched, "grid")


def test_runs_side_by_side_have_what_differs_alone(searched: list[Run]) -> None:
    seeds = tracking.tagged(searched, "seeds")
    assert tracking.differing(seeds) == ["seed"]
    table = tracking.together(seeds)
    assert table["val_top1"].is_monotonic_decreasing and sorted(table["seed"]) == [*range(16)]
    assert table["run"][0] == max(seeds, key=lambda run: run.record.val_top1).name
    timed = tracking.together(recorded_runs("nvidia-h100", "throughput"))
    assert "val_top1" not in timed and timed["last_loss"].is_monotonic_increasing


def test_shares_tell_what_goes_along() -> None:
    found = [0.1, 0.2, 0.8, 0.9]
    table = pd.DataFrame({"val_top1": found, "batch_size": [2, 2, 1, 1], "seed": [0, 1, 0, 1]})
    shares = tracking.explained(table)
    assert shares["batch_size"] == pytest.approx(0.49 / 0.5)  # 4 * 0.35^2 of 2 * (0.4^2 + 0.3^2)
    assert shares["seed"] == pytest.approx(0.01 / 0.5)
    assert [*shares.index] == ["batch_size", "seed"]


def test_joules_are_of_all_gpus_and_unknown_where_nobody_counted(
    searched: list[Run], tmp_path: Path
) -> None:
    run = own_copy(searched[0], tmp_path / "one", watts=500.0, wall_s=36.0, gpus=4)
    assert tracking.joules(run) == 72_000
    uncounted = own_copy(searched[1], tmp_path / "other", watts=None)
    assert math.isnan(tracking.joules(uncounted))
    bill = tracking.bill([run, uncounted]).set_index("for")
    assert bill.loc["all", ["runs", "counted", "kWh"]].tolist() == [2, 1, 0.02]
    with pytest.raises(ValueError, match=f"nobody counted the joules of {uncounted.name}:"):
        tracking.carbon([run, uncounted], g_per_kwh=56)


def test_grams_follow_from_the_grid_the_building_and_the_node(
    searched: list[Run], tmp_path: Path
) -> None:
    assert tracking.carbon(3.6e6, g_per_kwh=56) == 56
    assert tracking.carbon(3.6e6, g_per_kwh=50, pue=1.2, host=1.5) == pytest.approx(90)
    run = own_copy(searched[0], tmp_path / "one", watts=1000.0, wall_s=3600.0, gpus=1)
    assert tracking.carbon(run, g_per_kwh=381) == pytest.approx(381)
    table = tracking.by_grid(run, pue=1.5, host=1.2)
    assert (table["gpus"] + table["host"] + table["building"]).tolist() == pytest.approx(
        table["grams"].tolist()
    )
    assert table["grams"].tolist() == pytest.approx((table["g_per_kwh"] * 1.8).tolist())
    for wrong in ({"pue": 0.9}, {"host": 0.5}, {"g_per_kwh": -1}):
        with pytest.raises(ValueError, match="they add to the GPUs"):
            tracking.carbon(1.0, **{"g_per_kwh": 1, **wrong})


def test_pictures_say_what_is_to_be_seen(searched: list[Run]) -> None:
    table = tracking.together(searched)
    alt = tracking.plot_together(table, ["lr", "seed"]).alt
    assert f"val_top1; from {table['val_top1'].max():.3f}" in alt
    assert f"of the best run {table['lr'][0]}" in alt
    grids = tracking.by_grid(searched, pue=1.0, host=1.0)
    assert f"Norway: {grids['grams'][0]:.2f}" in tracking.plot_grams(grids).alt


# What the lab shows is what a shell takes.


@pytest.fixture
def shell(tmp_path: Path, searched: list[Run]) -> Path:
    """A folder as a learner's: two runs of theirs, and the scripts of the course."""
    for name, run in zip(("FIRST", "SECOND"), searched):
        own_copy(run, tmp_path / "runs" / name)
        (tmp_path / "runs" / name / "train.py").write_text(f"print({name!r})\n")
    weights = tmp_path / "runs" / "FIRST" / "weights.pt"
    weights.write_bytes(b"0" * 5000)
    os.utime(weights, (0, 0))
    (tmp_path / "runs" / "SECOND" / "weights.pt").write_bytes(b"0")
    (tmp_path / "solutions").symlink_to(PROJECT / "solutions")
    return tmp_path


def done(command: str, folder: Path, **variables: str) -> subprocess.CompletedProcess:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "COURSE_RUNS": str(folder / "runs"), **variables}
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, **own},
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_a_diff_of_two_runs_is_seen(shell: Path) -> None:
    told = done(HABITS["code that can be compared"], shell)
    assert "-print('FIRST')\n+print('SECOND')" in told.stdout


def test_old_weights_are_found(shell: Path) -> None:
    told = done(HABITS["tidy storage"], shell)
    assert told.stdout.split()[1::2] == ["runs/FIRST/weights.pt"]


@pytest.mark.slow
def test_a_record_is_shared(shell: Path) -> None:
    assert done(HABITS["results to share"], shell).returncode == 0
    told = json.loads((shell / "result.json").read_text())
    record = json.loads((shell / "runs/FIRST/record.json").read_text())
    assert told["val_top1"] == record["val_top1"]


@pytest.mark.slow
@pytest.mark.parametrize("habit", ["config as data", "profile before you buy GPUs"])
def test_a_job_is_seen_before_it_is_submitted(shell: Path, habit: str) -> None:
    command = HABITS[habit].removesuffix("--dry-run")
    told = done(f"{command} --dry-run", shell)
    assert told.returncode == 0, told.stderr
    assert "#SBATCH" in told.stdout or "python" in told.stdout


def script(path: Path, *lines: str) -> None:
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))


def test_slurm_runs_arrays_and_chains(slurm: Path, shell: Path) -> None:
    script(shell / "sweep.sh", "touch task-$SLURM_ARRAY_TASK_ID")
    script(shell / "train.sh", "sleep 1; echo trained > weights")
    script(shell / "test.sh", "cat weights > tested.part; mv tested.part tested")
    for habit in ("chained jobs", "job arrays"):
        told = done(HABITS[habit], shell, **own_slurm.environment())
        assert told.returncode == 0, told.stderr
    eventually(lambda: (shell / "tested").exists(), "the second job of the chain has run")
    assert (shell / "tested").read_text() == "trained\n"
    tasks = [f"task-{number}" for number in range(8)]
    eventually(lambda: sorted(path.name for path in shell.glob("task-*")) == tasks, "all 8 ran")
    told = done(HABITS["short time limits"], shell, **own_slurm.environment())
    assert "TimeLimit=00:20:00" in slurm_says("scontrol", "show", "job", told.stdout.split()[3])


def test_a_chain_that_cannot_go_on_leaves_the_queue(slurm: Path, shell: Path) -> None:
    script(shell / "train.sh", "exit 1")
    script(shell / "test.sh", "touch tested")
    told = done(HABITS["chained jobs"], shell, **own_slurm.environment())
    number = told.stdout.split()[3]
    asked = ("sacct", "-X", "-n", "-P", "-j", number, "-o", "State")
    eventually(lambda: "CANCELLED" in slurm_says(*asked), "it is gone from the queue")
    assert not (shell / "tested").exists()


def test_a_job_that_can_never_start_is_told_from_one_that_waits() -> None:
    never, waits = map(slurm_jobs._in_words, ("DependencyNeverSatisfied", "Dependency"))
    assert "it never starts" in never and "waits for another job" in waits
