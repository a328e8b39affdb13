"""Slurm's commands as a site may have them: with defaults in variables, wrappers and banners."""

import os
from pathlib import Path

import pytest
from job_helpers import CONFIG, SCRIPTS

from course.jobs import launch as jobs
from course.jobs import plan, slurm, slurm_partitions
from course.jobs.processes import job_environment
from course.runs import run as runs
from course.runs.errors import JobError
from course.runs.run import Run
from idr_pytools import gpu_jobs_submitter

# Each command writes its arguments and environment to a file, and prints what its file contains.
COMMAND = """#!/bin/sh
{ echo "ARGUMENTS $*"; env; } >> "$0.called"
cat "$0.out" 2> /dev/null
exit $(cat "$0.code" 2> /dev/null || echo 0)
"""
BANNER = "Welcome! Please read the news\n| maintenance on Monday |\n\n"
OUTER = (
    *("SBATCH_EXPORT", "SBATCH_PARTITION", "SBATCH_TIMELIMIT", "SBATCH_ACCOUNT", "SLURM_JOB_ID"),
    *("SLURM_NTASKS", "SLURM_CPU_BIND", "SLURM_MEM_PER_CPU", "SLURM_EXPORT_ENV", "SRUN_CONTAINER"),
    *("SALLOC_PARTITION", "SQUEUE_PARTITION", "SINFO_FORMAT", "SACCT_FORMAT", "SCANCEL_USER"),
    *("PMI_RANK", "PMIX_RANK", "SUBMITIT_EXECUTOR", "RANK", "MASTER_PORT"),
)
KEPT = (
    "SLURM_BOX",
    "SLURM_BOX_PORT",
    "SLURM_CLUSTERS",
    "SLURM_JWT",
    "LOADEDMODULES",
    "https_proxy",
    "MY_TOKEN",
)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs_root: Path) -> Path:
    """Put commands into the PATH that Slurm's would be in."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sbatch", "srun", "squeue", "sinfo", "sacct", "scancel"):
        (folder / name).write_text(COMMAND)
        (folder / name).chmod(0o755)
    (folder / "sinfo.out").write_text(f"{BANNER}gpu*|infinite|gpu:4\n")
    (folder / "sbatch.out").write_text("Submitted batch job 77\n")
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_CONF", raising=False)
    monkeypatch.setenv("SLURM_BOX", str(tmp_path / "no_cluster"))
    monkeypatch.setenv("COURSE_SITES", str(tmp_path / "sites.toml"))
    slurm._forget()
    return folder


def called(command: Path) -> list[str]:
    path = Path(f"{command}.called")
    return path.read_text().splitlines() if path.exists() else []


def launch() -> Run:
    return jobs.launch(SCRIPTS / "ok_light.py", CONFIG, site="slurm")


def test_no_command_gets_an_outer_job_or_the_defaults_of_commands(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*OUTER, *KEPT):
        monkeypatch.setenv(name, "1")
    run = launch()
    slurm.cancel(run)
    for name in ("sinfo", "sbatch", "scancel"):
        names = {line.partition("=")[0] for line in called(tools / name)}
        assert not names & {*OUTER}, name
        assert names >= {*KEPT}, name
    assert not {*OUTER} & {*job_environment()}  # jobs of this machine have it, too


def test_the_default_account_is_shown_and_a_site_overrides_it(
    tools: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SBATCH_ACCOUNT", "mine")
    script = SCRIPTS / "ok_light.py"
    assert "#SBATCH --account=mine\n" in plan.preview(script, CONFIG, site="slurm")
    for setting in ('account = "ours"', 'sbatch = ["account=ours"]'):
        (tmp_path / "sites.toml").write_text(f"[slurm]\n{setting}\n")
        assert "#SBATCH --account=ours\n" in plan.preview(script, CONFIG, site="slurm")


@pytest.mark.parametrize(
    "output",
    [
        "Submitted batch job 77",
        "77",
        "77;cluster-2",
        f"{BANNER}You may use 4 GPUs for each job 5 times\nSubmitted batch job 77 on cluster x",
        f"{BANNER}  77  \n",
        "Your job 77 was queued",
    ],
)
def test_ids_of_a_wrapper(tools: Path, output: str) -> None:
    (tools / "sbatch.out").write_text(output)
    assert launch().launched["job_id"] == "77"


def test_a_job_without_a_readable_id_is_cancelled_by_its_name(tools: Path) -> None:
    (tools / "sbatch.out").write_text("Thank you for your submission")
    with pytest.raises(JobError, match="'Thank you for your submission'.*cancelled by its name"):
        launch()
    (run,) = runs.all_runs()  # its job may have begun: the folder is kept
    assert run.status == "cancelled" and "Thank you" in run.record.error
    assert f"ARGUMENTS --me --name={run.name}" in called(tools / "scancel")
    (tools / "sbatch.out").write_text("77")
    assert launch().launched["job_id"] == "77"


def test_a_job_of_idr_pytools_is_read_alike(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tools / "sbatch.out").write_text(f"{BANNER}77;cluster")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COURSE_SITE", "slurm")
    assert gpu_jobs_submitter("train.py") == ["77"]
    (tools / "sbatch.out").write_text("Thank you")
    with pytest.raises(ValueError, match="'Thank you'.*may run: see display_slurm_queue"):
        gpu_jobs_submitter("train.py")


def test_a_refused_job_is_cancelled_too_because_slurm_may_have_taken_it(tools: Path) -> None:
    (tools / "sbatch.code").write_text("1")
    with pytest.raises(ValueError, match="Slurm refused the job"):
        launch()
    assert not runs.all_runs()
    assert any("--name=baseline-" in line for line in called(tools / "scancel"))


def test_a_job_that_is_being_requeued_has_not_failed(tools: Path) -> None:
    run = launch()
    (tools / "sacct.out").write_text(f"{run.name}|FAILED|1:0|node1\n")
    (tools / "squeue.out").write_text("")
    assert slurm.ending(run)[0] == "failed"
    (tools / "squeue.out").write_text(f"77|PENDING|None|0:00|1||{run.name}\n")
    assert slurm.ending(run) == ("queued", "")


def test_answers_with_a_banner_and_other_bytes(tools: Path) -> None:
    run = launch()
    row = f"77|RUNNING|None|0:05|1|node1|{run.name}\n".encode()
    (tools / "squeue.out").write_bytes(BANNER.encode() + "78|RUNNING|x|1|1|n|é\n".encode("latin-1"))
    slurm._forget()
    assert not slurm.is_alive(run)
    (tools / "squeue.out").write_bytes(BANNER.encode() + row)
    slurm._forget()
    assert slurm.is_alive(run) and slurm.queue_states([run])[run.name]["reason"] == "on node1"
    (tools / "sacct.out").write_text(f"{BANNER}{run.name}|TIMEOUT|0:0|node1\n")
    assert slurm.ending(run) == ("timeout", "Slurm: TIMEOUT, exit code 0:0, on node1")
    assert [offer.name for offer in slurm_partitions.partitions()] == ["gpu"]


@pytest.mark.parametrize("name", ["100%", "%j", "back\\slash", "new\nline"])
def test_a_path_that_slurm_would_misread_is_refused(
    tools: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str
) -> None:
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / name))
    with pytest.raises(ValueError, match="Slurm would not read.*set COURSE_RUNS"):
        launch()
    assert not called(tools / "sbatch") and not runs.all_runs()
