"""Launching, waiting, and jobs whose launcher ends."""

import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import of_ranks
import pytest
import torch
from job_helpers import (
    CONFIG,
    DEADLINE_S,
    SCRIPTS,
    eventually,
    launch,
    launch_running,
    nothing_left,  # noqa: F401 (pytest runs it around each test)
    over,
    printed,
    release,
    start_python,
)

from course.analysis.ranks import on_ranks
from course.config import rung
from course.config.scripts import ParallelConfig
from course.jobs import launch as jobs
from course.jobs import plan
from course.jobs.launch import JobError
from course.jobs.local_queue import queue_folder, tickets
from course.jobs.supervise import PORTS
from course.runs import run as runs
from course.runs.files import read_dict
from labs.gpu.exports import export


def test_ranks_load_no_object_of_a_process_that_took_the_place_of_one(tmp_path: Path) -> None:
    """A group's ports have no password, and an object is a pickle, which runs any code."""
    with pytest.raises(RuntimeError, match="not from a rank of this run: someone took its place"):
        on_ranks(of_ranks.sends_code, 2, tmp_path / "planted")
    assert not (tmp_path / "planted").exists()


def test_ranks_that_a_script_starts_itself_exchange_objects(
    tmp_path: Path, runs_root: Path
) -> None:
    store = str(tmp_path / "store")
    run = over(jobs.launch(SCRIPTS / "starts_a_rank.py", CONFIG, arguments=[store]))
    assert run.status == "ok", run.explain()
    assert "['rank 0', 'rank 1']" in run.tail()


def test_launch_does_not_wait_for_the_run(runs_root):
    run = launch("holds.py")  # it runs until it is released
    assert jobs.refresh(run) in ("queued", "running")
    release(run)
    assert over(run).status == "ok"


def test_the_same_launch_is_the_same_run_while_it_runs_and_when_it_is_over(runs_root, capsys):
    run = launch_running("holds.py")
    assert launch("holds.py") == run
    release(run)
    assert over(run).status == "ok"
    assert launch("holds.py") == run
    assert "nothing started (rerun=True, or --rerun, repeats it)" in capsys.readouterr().out
    assert runs.all_runs() == [run]


def test_rerun_makes_another_run_and_becomes_the_one_found(runs_root):
    first = over(launch("ok_light.py"))
    second = over(launch("ok_light.py", rerun=True))
    assert second.name == f"{first.name}.2" and second.status == "ok"
    assert launch("ok_light.py") == second


@pytest.mark.parametrize("device, visible", [("cpu", ""), ("auto", "0")])
def test_a_run_on_the_cpu_finds_no_gpu(device, visible, runs_root, tmp_path, monkeypatch):
    script = tmp_path / "visible.py"
    script.write_text("import os\nprint([os.environ['CUDA_VISIBLE_DEVICES']])\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    run = over(jobs.launch(script, replace(CONFIG, device=device)))
    assert str([visible]) in printed(run)


def test_a_run_out_of_memory_says_where_and_is_not_repeated_unasked(runs_root):
    run = over(launch("runs_out_of_memory.py"))
    error = run.record.error
    assert "1000000000000000 bytes" in error and "train.py, line 8" in error
    explained = run.explain()
    assert "runs_out_of_memory.py, line 8" in explained and "lower batch_size" in explained
    assert run.status == "oom" and launch("runs_out_of_memory.py") == run


@pytest.mark.parametrize(
    "script, status",
    [("holds.py", "cancelled"), ("kills_itself.py", "lost"), ("raises.py", "failed")],
)
def test_a_run_that_did_not_end_well_is_started_again(runs_root, script, status):
    first = launch(script)
    if status == "cancelled":
        first.cancel()
    assert over(first).status == status
    assert launch(script) != first
    assert first.status == status


def test_other_text_config_or_gpus_make_another_run(runs_root, tmp_path):
    script = tmp_path / "edited.py"
    script.write_text("print(1)")
    launched = [jobs.launch(script, CONFIG), jobs.launch(script, replace(CONFIG, seed=1))]
    if os.cpu_count() > 1:
        launched.append(jobs.launch(script, CONFIG, gpus=2))
    script.write_text("print(2)")
    launched.append(jobs.launch(script, CONFIG))
    assert len({run.name for run in launched}) == len(launched)

    script.write_text("print(1)")
    assert jobs.launch(script, CONFIG) == launched[0]


def test_editing_the_script_after_launching_changes_nothing(runs_root, tmp_path):
    script = tmp_path / "edited.py"
    text = (SCRIPTS / "holds.py").read_text()
    script.write_text(text + "# as launched\n")
    run = jobs.launch(script, CONFIG)
    script.write_text(text + "# edited later\n")
    release(run)
    assert over(run).status == "ok"
    assert "# as launched" in printed(run)
    assert "# edited later" not in printed(run)


def test_two_launches_at_one_moment_give_one_run_and_one_job(runs_root):
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    launchers = [start_python("launch_together.py", SCRIPTS / "holds.py", **pipes) for _ in "ab"]
    for launcher in launchers:
        assert launcher.stdout.readline() == "ready\n"
    for launcher in launchers:
        launcher.stdin.write("go\n")
        launcher.stdin.flush()
    outputs = [launcher.communicate(timeout=DEADLINE_S)[0] for launcher in launchers]

    (run,) = runs.all_runs()
    assert [output.splitlines()[-1] for output in outputs] == [run.name, run.name]
    assert sorted("launched before" in output for output in outputs) == [False, True]
    queue = [read_dict(ticket)["folder"] for ticket in tickets(queue_folder())]
    assert queue.count(str(run.folder)) == 1


def test_wait_raises_with_the_error_and_the_place_of_the_logs(runs_root):
    good, run = launch("ok_light.py"), launch("raises.py")
    with pytest.raises(JobError, match="the missing label") as caught:
        jobs.wait([good, run], timeout_s=DEADLINE_S)
    assert f"{run.name}: failed" in str(caught.value)
    assert str(run.folder / "logs") in str(caught.value)
    assert run.wait(check=False) is run


def test_wait_says_why_a_run_has_not_begun(runs_root, capsys):
    first = launch_running("holds.py")
    waiting = launch("ok_light.py")
    with pytest.raises(JobError, match="still queued"):
        waiting.wait(timeout_s=3)
    reason = f"one job at a time: {first.name} computes"
    assert f"{waiting.name} waits: {reason}\n" in capsys.readouterr().out


def start_launcher(runs_root):
    """Start a process that launches holds.py and waits; return it, its run, and its output file."""
    output = runs_root.with_name("printed.txt")
    with output.open("w") as file:
        launcher = start_python("launch_and_wait.py", SCRIPTS / "holds.py", stdout=file)
    eventually(lambda: "[running" in output.read_text(), "the launcher follows a running job")
    (run,) = runs.all_runs()
    return launcher, run, output


def test_interrupting_the_wait_leaves_the_job_alone(runs_root):
    launcher, run, output = start_launcher(runs_root)
    os.killpg(launcher.pid, signal.SIGINT)
    assert launcher.wait(DEADLINE_S) == 0
    assert "Stopped waiting; the job goes on" in output.read_text()
    assert jobs.refresh(run) == "running"
    release(run)
    assert over(run).status == "ok"


def test_the_job_survives_the_end_of_its_launchers_process_group(runs_root):
    launcher, run, _ = start_launcher(runs_root)
    os.killpg(launcher.pid, signal.SIGKILL)
    assert launcher.wait(DEADLINE_S) == -signal.SIGKILL
    assert jobs.refresh(run) == "running"
    release(run)
    assert over(run).status == "ok"


def test_a_runs_folder_that_cannot_be_made_is_named(runs_root, tmp_path, monkeypatch):
    file = tmp_path / "file"
    file.write_text("no folder")
    monkeypatch.setenv("COURSE_RUNS", str(file / "runs"))
    with pytest.raises(JobError, match="file/runs: Not a directory.*COURSE_RUNS"):
        launch("ok_light.py")
    assert file.read_text() == "no folder"


@pytest.mark.skipif(torch.accelerator.device_count() > 0, reason="four ranks need no GPU here")
def test_simulated_hosts_split_the_ranks_and_need_nccl(runs_root: Path, tmp_path: Path) -> None:
    config = rung("device", quick=True, hosts=2, model="resnet18", data="synthetic", image_px=32)
    script = tmp_path / "environment.py"
    script.write_text(
        "import os\nprint(*(os.environ[name] for name in "
        "('RANK', 'NCCL_HOSTID', 'NCCL_SOCKET_IFNAME')))\n"
    )
    run = over(jobs.launch(script, config, gpus=4))
    hosts = ["0 host0 lo", "1 host0 lo", "2 host1 lo", "3 host1 lo"]
    assert sorted(filter(None, printed(run).splitlines())) == hosts
    run = over(jobs.launch("solutions/train.py", config, gpus=2))
    assert run.status == "failed"
    assert "hosts=2: only NCCL can simulate hosts, and these ranks use cpu:gloo" in run.record.error
    with pytest.raises(ValueError, match="must share gpus=2 evenly: choose hosts=1 or 2"):
        jobs.launch("solutions/train.py", replace(config, hosts=4), gpus=2)


@pytest.mark.parametrize("there, refused", [(0, False), (1, True), (2, False)])
def test_two_ranks_cannot_share_one_gpu(monkeypatch, there, refused):
    monkeypatch.setattr(torch.accelerator, "device_count", lambda: there)
    ask = {"script": "solutions/train.py", "gpus": 2}
    plan.plan_run(config=rung("baseline", batch_size=8), **ask)  # on the CPU, any number
    config = rung("device", batch_size=8)
    if refused:
        with pytest.raises(ValueError, match="gpus=2: this machine has fewer GPUs.*device='cpu'"):
            plan.plan_run(config=config, **ask)
    else:
        assert plan.plan_run(config=config, **ask).request["gpus"] == 2


def test_a_script_that_would_ignore_what_a_config_asks_is_refused(runs_root: Path) -> None:
    for script, rung_name, changes, message in (
        ("train.py", "accumulated", {}, "train.py has no model='coatnet_pico_rw_224'; train_sha"),
        ("train.py", "baseline", {"micro_batch": 2}, "no setting 'micro_batch'; train_sharded.py"),
        ("train_parallel.py", "mixup", {}, "'mix'; train.py and train_restarted.py have it"),
        ("train_parallel.py", "large", {"clip": 1}, "'clip'; train_sharded.py and train_gpt.py"),
        ("train_restarted.py", "baseline", {"bucket_mb": 1}, "train.py and train_sharded.py have"),
    ):
        with pytest.raises(ValueError, match=message):
            jobs.launch(f"exercises/{script}", rung(rung_name, **changes))


def test_a_config_becomes_one_of_the_launched_script(runs_root: Path, tmp_path: Path) -> None:
    parallel = plan.plan_run("exercises/train_parallel.py", rung("large")).config
    assert type(parallel) is ParallelConfig and "clip" not in vars(parallel)
    snapshot = tmp_path / "train.py"  # that of a run of any script has this name
    snapshot.write_text("print()")
    (tmp_path / "launch.json").write_text('{"script": "exercises/train_sharded.py"}')
    assert plan.plan_run(snapshot, rung("large", clip=1)).config.clip == 1


def test_ranks_meet_where_no_connection_of_another_process_can_be():
    """Otherwise a training would fail now and then: "address already in use"."""
    taken_from = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    assert max(PORTS) + 100 < taken_from


def test_no_process_imports_what_is_planted_in_the_working_directory(
    runs_root: Path, planted: Path
) -> None:
    """A run's processes, and others that the course starts, import only what is installed."""
    run = over(launch("all_reduces.py", gpus=2))
    assert not planted.exists(), planted.read_text()
    assert run.status == "ok", run.explain()
    assert on_ranks(of_ranks.visible_gpus, 1) == [""]
    assert list(export(run, "tensorboard").folder.iterdir())
    assert not planted.exists(), planted.read_text()
