"""What a run shows while it trains: curves, progress, and a time limit that is too short."""

import json
import sys
from datetime import datetime
from pathlib import Path

import pytest
import torch

from course.cli.tables import progress_cells
from course.config import rung
from course.runs.run import Run
from course.training import meter, progress, trackers
from course.training.recorder import Recorder
from trainspeed.phases import PHASES

CPU = torch.device("cpu")
SETTINGS = {"data": "synthetic", "epochs": 2, "steps": 4, "warmup_steps": 1, "schedule": "cosine"}


@pytest.fixture
def recorder(tmp_path: Path) -> Recorder:
    return record(tmp_path, tracker="tensorboard")


def record(folder: Path, **changes) -> Recorder:
    (folder / "config.json").write_text(rung("baseline", **SETTINGS | changes).to_json())
    (folder / "launch.json").write_text('{"time_min": 60}')
    started = {"started_at": datetime.now().isoformat()}
    (folder / "started.json").write_text(json.dumps(started))
    return Recorder(Run(folder))


def train(run: Recorder, first: int = 0, stop: int = 8) -> None:
    timed = meter.Meter(run, CPU, first)
    for epoch in range(first // 4, 2):
        for _ in timed.steps([(torch.zeros(1), torch.zeros(1))] * 4, epoch):
            if timed.step == stop:
                return
            for phase in PHASES:
                timed.lap(phase, loss=torch.tensor(0.5) if phase == "optimizer" else None)
        run.epoch(val_loss=1.0, val_top1=0.25 * (epoch + 1), val_images=8)


def curves(folder: Path) -> dict[str, list[int]]:
    """Return the steps of each curve that TensorBoard shows."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        name: [event.step for event in events.Scalars(name)] for name in events.Tags()["scalars"]
    }


def test_tensorboard_shows_steps_and_epochs_also_of_two_processes(
    recorder: Recorder, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    train(recorder, stop=7)  # killed; its checkpoint was of step 6
    for hook in recorder.hooks:
        hook.end("failed")
    again = Recorder(Run(tmp_path))
    train(again, first=6)
    again.finish("ok")
    shown = curves(tmp_path / "tensorboard")
    assert shown["step/loss"] == [*range(8)] == shown["step/step_s"]
    assert shown["epoch/val_top1"] == [3, 7]


def test_training_continues_without_the_tool(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    train(recorder)
    recorder.finish("ok")
    assert "pip install tensorboard. Training continues" in capsys.readouterr().out
    assert recorder.values["steps_measured"] == 7


@pytest.mark.parametrize("name", trackers.OPENERS)
def test_each_tool_has_a_setting(name: str) -> None:
    assert rung("baseline", tracker=name).tracker == name


def test_a_running_run_shows_epoch_accuracy_and_time_left(
    recorder: Recorder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "PERIOD_S", 0.0)
    now = iter(range(100, 10_000, 10))  # seconds: 10 between two calls
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    run = Run(tmp_path)
    assert progress_cells(run) == {"epoch": "0/2", "val_top1": None, "left": ""}
    count = progress.Progress(recorder, first=0)
    for step in (1, 2, 3, 4):
        count.update(step)
    recorder.epoch(val_loss=1.0, val_top1=0.25, val_images=8)
    count.update(5)
    # 40 seconds for 4 steps after warm-up, and 3 of 8 are left.
    assert progress_cells(run) == {"epoch": "1/2", "val_top1": 0.25, "left": "0:30"}
    assert run.total_steps == 8
    recorder.finish("ok")
    assert progress_cells(run)["left"] == ""


def test_a_time_limit_that_is_too_short_is_reported_once(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    now = iter(range(4000, 10**6, 4000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    count = progress.Progress(recorder, first=0)
    for step in (1, 2, 3):
        count.update(step)
    out = capsys.readouterr().out
    assert out.count("about 6:40:00 of training are left") == 1
    assert "its job ends 1:00:00 after its start; it saves no checkpoint" in out


def test_a_run_that_no_launch_made_has_no_time_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """As of a script that another profiler starts with the folder of a config."""
    (tmp_path / "config.json").write_text(rung("baseline", epochs=1, steps=16).to_json())
    now = iter(range(4000, 10**6, 4000))
    monkeypatch.setattr(progress.time, "monotonic", lambda: float(next(now)))
    count = progress.Progress(Recorder(Run(tmp_path)), first=0)
    for step in (8, 9, 10):
        count.update(step)
    captured = capsys.readouterr()
    assert "time limit" not in captured.out + captured.err
