"""Runs on a real Slurm: how they start, how they end, and that the record says so."""

import os
import signal
import subprocess
from pathlib import Path

import pytest
from job_helpers import (
    eventually,
    expect_no_process,
    launch,
    launch_running,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
    printed,
    release,
)

from course import cluster, jobs, runs, sites
from course.config import rung

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]
TINY = rung("device", quick=True, model="resnet18", data="synthetic", image_px=32, batch_size=2,
            steps=3, warmup_steps=1, val_steps=0)  # fmt: skip


def slurm_says(*words: str) -> str:
    env = os.environ | cluster.environment()
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def state(run: runs.Run) -> str:
    number = run.launched["job_id"]
    return slurm_says("sacct", "-X", "-n", "-P", "-j", number, "-o", "State").partition(" ")[0]


@pytest.fixture
def user_sites(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own file of sites."""
    path = tmp_path / "my_sites.toml"
    monkeypatch.setenv("COURSE_SITES", str(path))
    return path


def test_a_training_run_is_recorded_as_on_this_machine(runs_root: Path) -> None:
    run = jobs.wait(jobs.launch("solutions/train.py", TINY, site="slurm"))
    assert (run.status, run.record.site, run.record.job_id) == (
        "ok", "slurm", run.launched["job_id"],
    )  # fmt: skip
    assert run.record.images_per_s > 0 and len(run.steps) == 3
    eventually(lambda: state(run) == "COMPLETED", "Slurm says so too")
    again = jobs.launch("solutions/train.py", TINY, site="slurm")
    assert again.folder == run.folder


def test_two_nodes_of_two_tasks_reduce_together(runs_root: Path, user_sites: Path) -> None:
    user_sites.write_text("[slurm]\ngpus_per_node = 2\n")
    run = over(launch("all_reduces.py", site="slurm", gpus=4))
    assert run.status == "ok", jobs.explain(run)
    nodes = slurm_says("sacct", "-X", "-n", "-P", "-j", run.launched["job_id"], "-o", "NNodes")
    assert nodes == "2"
    assert len([path for path in run.logs if path.suffix == ".out"]) >= 4


def test_the_script_that_sbatch_got_says_what_was_asked(runs_root: Path, user_sites: Path) -> None:
    user_sites.write_text(
        '[slurm]\nqos = "normal"\nsbatch = ["nice=5"]\n'
        'setup = ["module() { :; }", "module load x"]\n'
    )
    run = over(launch("ok_light.py", site="slurm", time_min=7))
    (script,) = (run.folder / "logs").glob("*_submission.sh")
    lines = script.read_text().splitlines()
    for wanted in ("nodes=1", "ntasks-per-node=1", "gres=gpu:1", "time=9", "qos=normal", "nice=5",
                   "cpus-per-task=1", f"job-name={run.name}"):  # fmt: skip
        assert f"#SBATCH --{wanted}" in lines
    assert "module load x" in lines
    assert run.status == "ok"


def test_a_script_that_raises_is_failed_with_its_words(runs_root: Path) -> None:
    run = over(launch("raises.py", site="slurm"))
    assert run.status == "failed"
    assert run.record.error


def test_a_run_past_its_time_is_a_timeout(runs_root: Path) -> None:
    run = over(launch("holds.py", site="slurm", time_min=0.05))
    assert run.status == "timeout", jobs.explain(run)


def test_cancelling_a_running_and_a_waiting_one(runs_root: Path) -> None:
    running = launch_running("holds.py", site="slurm", gpus=8)
    waiting = launch("ok_light.py", site="slurm", gpus=8)
    assert [jobs.refresh(running), jobs.refresh(waiting)] == ["running", "queued"]
    for run in (waiting, running):
        jobs.cancel(run)
        assert run.status == "cancelled"
    eventually(lambda: state(running) == state(waiting) == "CANCELLED", "Slurm says so too")
    assert not waiting.started
    expect_no_process(runs_root)


def test_cancelled_behind_the_courses_back(runs_root: Path) -> None:
    run = launch_running("holds.py", site="slurm")
    slurm_says("scancel", run.launched["job_id"])
    assert over(run).status == "cancelled"
    assert "Slurm: CANCELLED" in run.record.error


def test_many_at_once_all_arrive_and_none_twice(runs_root: Path) -> None:
    configs = [rung("baseline", quick=True, rung=f"number-{n}") for n in range(12)]
    launched = [launch("ok_light.py", site="slurm", config=config) for config in configs]
    assert len({run.launched["job_id"] for run in launched}) == 12
    jobs.wait(launched)
    assert {run.status for run in launched} == {"ok"}
    assert len(runs.find(status="ok")) == 12


def test_the_controller_restarts_while_a_run_computes(runs_root: Path, slurm: Path) -> None:
    run = launch_running("holds.py", site="slurm")
    cluster._pids(slurm)["slurmctld"].send_signal(signal.SIGTERM)
    eventually(lambda: "slurmctld" not in cluster._pids(slurm), "it is gone")
    assert jobs.refresh(run) == "running"  # nobody can say otherwise
    cluster.up()
    assert jobs.refresh(run) == "running"
    release(run)
    assert over(run).status == "ok", jobs.explain(run)


def test_what_slurm_refuses_leaves_no_run(runs_root: Path, user_sites: Path) -> None:
    user_sites.write_text('[slurm]\npartition = "moon"\n')
    with pytest.raises(ValueError, match="Slurm refused the job: .*invalid partition"):
        launch("ok_light.py", site="slurm")
    assert runs.all_runs() == []


@pytest.mark.parametrize("gpus, valid", [(0, 1), (9, 8), (5, 6)])
def test_gpus_that_fill_no_nodes_are_refused_with_the_valid(gpus: int, valid: int) -> None:
    with pytest.raises(ValueError, match=rf"gpus={gpus}: .*nodes of 4 GPUs.*\b{valid}\b"):
        sites.get("slurm").check_gpus(gpus)


def test_printed_text_is_found_in_the_logs(runs_root: Path) -> None:
    assert "all is well" in printed(over(launch("ok_light.py", site="slurm")))
