"""A disk without room: nothing half-launched is left, and no run waits forever."""

import os
import signal
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from job_helpers import (
    CONFIG,
    eventually,
    expect_no_process,
    fill,
    launch,
    launch_running,
    nothing_left,  # noqa: F401 (pytest runs it around each test)
    over,
    prepared,
    release,
    small_runs_root,
)
from torch import distributed

from course.jobs import launch as jobs
from course.jobs.launch import JobError
from course.runs.record import RESERVE, RESERVE_BYTES
from course.runs.run import FOLDER_VARIABLE
from course.training.checkpoints import BackgroundWriter
from course.training.recorder import Recorder, recording


@pytest.mark.parametrize("kib", (64, 76, 88))  # from no room for the reserve to just enough
def test_a_launch_is_refused_without_a_trace_or_ends_with_a_record(tmp_path, kib):
    with small_runs_root(tmp_path / "disk", f"{kib}k") as root:
        try:
            run = over(launch("ok_light.py"))
        except JobError as error:
            assert str(root) in str(error) and "COURSE_RUNS" in str(error)
            assert "No space left on device" in str(error)
            assert [path for path in root.iterdir() if not path.name.startswith(".")] == []
            expect_no_process(root, timeout_s=2)
        else:
            assert kib > 64  # the reserve alone takes all of that
            assert run.record is not None


def test_no_training_goes_on_unwatched_where_its_start_cannot_be_noted(runs_root, tmp_path):
    silent = tmp_path / "silent.py"  # printing on a full disk would end it
    silent.write_text("import time\ntime.sleep(60)")
    first = launch_running("holds.py")
    with small_runs_root(tmp_path / "disk", "2m") as root:
        waiting = jobs.launch(silent, CONFIG)
        fill(root)
        release(first)
        over(first)
        eventually(lambda: jobs.refresh(waiting) in ("lost", "failed"), "the run is given up")
        expect_no_process(root)


ENDINGS = {"fills_disk.py": "ok", "prints_endlessly.py": "failed"}


@pytest.mark.parametrize("script", ENDINGS)
def test_a_disk_that_fills_up_meanwhile_leaves_room_for_the_record(tmp_path, script):
    with small_runs_root(tmp_path / "disk", "2m"):
        run = over(launch(script))
        assert run.status == ENDINGS[script], run.record
        assert run.record.rung == CONFIG.rung


def test_a_dead_run_is_lost_even_where_no_record_can_be_written(tmp_path):
    with small_runs_root(tmp_path / "disk", "2m") as root:
        run = launch_running("holds.py")
        (run.folder / RESERVE).unlink()
        filler = fill(root)
        os.kill(run.started["supervisor"][0], signal.SIGKILL)
        with pytest.raises(JobError, match="lost"):
            run.wait(timeout_s=5)
        filler.unlink()
        assert jobs.refresh(run) == "lost" and run.record.status == "lost"


STATE = {"weights": torch.zeros(2**20)}  # 4 MiB


def _write_in_thread(run: Recorder) -> None:
    store = BackgroundWriter()
    store(STATE, run.checkpoints, 3)
    store.wait()


WRITERS: dict[str, Callable[[Recorder], None]] = {
    "weights": lambda run: run.save_weights(STATE),
    "checkpoint in a thread": _write_in_thread,
    "shards": lambda run: distributed.checkpoint.save(STATE, checkpoint_id=run.checkpoint),
    "torch.save": lambda run: torch.save(STATE, run.folder / "mine.pt"),
}


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_is_full_of_weights_is_to_blame(tmp_path, monkeypatch, writer):
    with small_runs_root(tmp_path / "disk", "2m") as root:
        run = prepared(root / "run", "", replace(CONFIG, save_weights=True))
        monkeypatch.setenv(FOLDER_VARIABLE, str(run.folder))
        (run.folder / RESERVE).write_bytes(bytes(RESERVE_BYTES))
        known = {*run.folder.iterdir()}
        with pytest.raises(BaseException), recording() as recorder:  # noqa: B017
            WRITERS[writer](recorder)
        assert "A disk is full, or your quota is used up" in run.record.error
        assert len(run.record.error) < 300 and "train.py" not in run.record.error
        assert "This is not the script's fault: free some disk space" in run.explain()
        left = {path for path in run.folder.rglob("*") if path.is_file()} - known
        mine = "mine.pt" if writer == "torch.save" else "record.json"  # the script must handle it
        assert {path.name for path in left} == {"record.json", mine}
