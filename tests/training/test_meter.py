"""The meter: phases in order, warm-up left out, and no batch loaded without need."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from course.config import rung
from course.runs.run import Run
from course.training import attempts
from course.training.meter import Meter
from course.training.recorder import Recorder
from trainspeed.phases import PHASES

CPU = torch.device("cpu")
TINY = {"data": "synthetic", "batch_size": 4, "image_px": 32, "epochs": 1, "warmup_steps": 0}


class Batches:
    """Random batches that count how many of them were loaded."""

    def __init__(self, length: int = 100) -> None:
        self.length, self.loaded = length, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.length):
            self.loaded += 1
            yield torch.randn(4, 8)


class ManualClock:
    """A clock that the test sets."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def is_past(self, mark: float) -> bool:
        return True

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


def recorder(**changes) -> Recorder:
    run = Recorder(None)
    run.config = rung("baseline", quick=True, **{**TINY, **changes})
    return run


def manual_meter(**changes) -> Meter:
    meter = Meter(recorder(**changes), CPU)
    meter.clock = ManualClock()
    return meter


def train(meter: Meter, batches: Batches, epoch: int = 0) -> None:
    """Train a real network through every phase of every step."""
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in meter.steps(batches, epoch):
        meter.lap("load")
        scores = model(batch)
        meter.lap("forward")
        loss = scores.square().mean()
        meter.lap("loss")
        loss.backward()
        meter.lap("backward")
        optimizer.step()
        optimizer.zero_grad()
        meter.lap("optimizer", loss=loss)


def lap(meter: Meter, phase: str, loss: float = 1.0) -> None:
    meter.lap(phase, loss=torch.tensor(loss) if phase == "optimizer" else None)


def step_through(
    meter: Meter, steps: list[tuple[float, ...]], losses: list[float], epoch: int = 0
) -> None:
    """Run steps whose phases take these seconds by the ManualClock."""
    for _, seconds, loss in zip(meter.steps(Batches(len(steps)), epoch), steps, losses):
        for phase, value in zip(PHASES, seconds):
            meter.clock.now += value
            lap(meter, phase, loss)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the folder of a run."""
    config = rung("baseline", quick=True, **{**TINY, "epochs": 2, "steps": 3})
    (tmp_path / "config.json").write_text(config.to_json())
    return tmp_path


def fails(*_: object, **__: object) -> None:
    raise RuntimeError("it does not answer")


MEASUREMENTS = {
    "the energy": "course.training.meter.counter",
    "a reading of the energy": "a counter that fails at its sixth reading",
    "the machine": "course.training.recorder.Recorder.describe",
    "host memory": "trainspeed.measured_memory.host_gib",
    "peak memory": "trainspeed.measured_memory.peak",
    "the process group": "course.training.evidence.group_and_loader.group",
    "the loader": "course.training.evidence.group_and_loader.loader",
    "operators": "course.training.evidence.shards.Order.computed",
    "operators' evidence": "course.training.evidence.operators.Observer.evidence",
    "updates": "course.training.evidence.shards.size",
    "end of a step": "course.training.evidence.updates.Updates.end_step",
}


@pytest.mark.parametrize("what", MEASUREMENTS)
def test_a_measurement_that_fails_does_not_end_training(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(attempts, "problems", [])
    readings = iter([5.0] * 5)
    if what == "a reading of the energy":
        monkeypatch.setattr("course.training.meter.counter", lambda _: lambda: next(readings))
    else:
        monkeypatch.setattr(MEASUREMENTS[what], fails)
    meter = Meter(recorder(steps=8, epochs=2, warmup_steps=1), CPU)
    for epoch in (0, 1):
        train(meter, Batches(), epoch)
        meter.run.epoch(val_top1=0.5)
    summary = meter.summary()
    assert (summary["steps_measured"], meter.run._values["last_loss"]) == (15, summary["last_loss"])
    assert "watts" not in summary
    reason = "StopIteration: " if what == "a reading of the energy" else "it does not answer"
    printed = capsys.readouterr().err
    assert f"unknown: {'RuntimeError: ' * ('Stop' not in reason)}{reason}" in printed
    assert printed.count("Training continues") <= 2


@pytest.mark.parametrize("epochs, length, steps", [(1, 100, 5), (2, 100, 5), (1, 3, 3)])
def test_only_the_batches_of_its_steps_are_loaded(epochs: int, length: int, steps: int) -> None:
    meter, batches = Meter(recorder(steps=5, epochs=epochs), CPU), Batches(length)
    for epoch in range(epochs):
        train(meter, batches, epoch)
    assert batches.loaded == meter.step == steps * epochs
    assert meter.summary()["steps_measured"] == steps * epochs


def test_steps_are_written_with_their_phases_during_training(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course.training.meter.FLUSH_S", 0)
    run = Run(folder)
    meter = Meter(Recorder(run), CPU)
    for step, _ in enumerate(meter.steps(Batches(), 0)):
        assert len(run.steps) == step
        for phase in PHASES:
            lap(meter, phase)
    train(meter, Batches(), 1)
    steps = run.steps
    assert steps["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert steps["epoch"].tolist() == [0, 0, 0, 1, 1, 1]
    phases = steps[[f"{phase}_s" for phase in PHASES]]
    assert (phases > 0).all(axis=None) and steps["loss"].notna().all()
    assert steps["step_s"].tolist() == pytest.approx(phases.sum(axis=1).tolist())


def test_warmup_is_left_out_of_times_but_not_of_losses() -> None:
    meter = manual_meter(steps=3, epochs=2, warmup_steps=4)
    step_through(meter, [(9, 9, 9, 9, 9)] * 3, [6.0, 5.0, 4.0])
    assert meter.summary() == {"steps_measured": 0, "first_loss": 6, "last_loss": 4}
    meter.clock.now += 100  # validation
    step_through(meter, [(8,) * 5, (1,) * 5, (1, 1, 1, 1, 2)], [3.0, 2.0, 1.0], epoch=1)
    summary = meter.summary()
    assert (summary["steps_measured"], summary["step_s"]) == (2, 5.5)
    assert (summary["first_loss"], summary["last_loss"]) == (6, 1)


def test_summary_has_quartiles() -> None:
    meter = manual_meter(steps=5, batch_size=60)
    step_through(meter, [(1, 1, 1, 0, total - 3) for total in (30, 4, 20, 10, 6)], [1.0] * 5)
    summary = meter.summary()
    assert [summary[f"step_s{part}"] for part in ("_q1", "", "_q3")] == [6, 10, 20]
    # The slow quartile of the time is the low one of the rate.
    assert [summary[f"images_per_s{part}"] for part in ("_q1", "", "_q3")] == [3, 6, 10]


@pytest.mark.parametrize("loss", (float("nan"), float("inf")))
def test_a_loss_that_is_not_finite_is_none(folder: Path, loss: float) -> None:
    meter = Meter(Recorder(Run(folder)), CPU)
    meter.clock = ManualClock()
    step_through(meter, [(1, 1, 1, 1, 1)] * 3, [1.5, 0.5, loss])
    assert (meter.summary()["first_loss"], meter.summary()["last_loss"]) == (1.5, None)
    text = (folder / "steps.jsonl").read_text()
    assert '"loss": null' in text and "NaN" not in text and "Infinity" not in text


@pytest.mark.parametrize(
    "laps, message",
    [
        ("forward", r"lap\('forward'\) came where 'load' was due; the order is load, forward"),
        ("load forward loss backward loss", r"lap\('loss'\) came where"),
        ("", "step 0 ended without meter.lap for load, forward, loss, backward, optimizer$"),
    ],
)
def test_phases_out_of_order_are_refused(laps: str, message: str) -> None:
    meter = Meter(recorder(steps=1), CPU)
    with pytest.raises(RuntimeError, match=message):
        for _ in meter.steps(Batches(), 0):
            for phase in laps.split():
                lap(meter, phase)


@pytest.mark.parametrize("passes", [1, 3, 4])
def test_phases_of_any_number_of_micro_batches_are_added_up(passes: int) -> None:
    meter = manual_meter(steps=1, batch_size=4, micro_batch=2)
    for _ in meter.steps(Batches(1), 0):
        lap(meter, "load")
        for _ in range(passes):
            for phase, seconds in (("forward", 1), ("loss", 2), ("backward", 3)):
                meter.clock.now += seconds
                lap(meter, phase)
        meter.clock.now += 4
        lap(meter, "optimizer")
    summary = meter.summary()
    assert summary["forward_s"] == passes and summary["loss_s"] == 2 * passes
    assert summary["backward_s"] == 3 * passes and summary["optimizer_s"] == 4


def test_a_script_that_you_start_yourself_prints_a_summary(capsys: pytest.CaptureFixture) -> None:
    run = recorder(steps=1)
    train(Meter(run, CPU), Batches())
    run.finish("ok")
    epoch, summary = capsys.readouterr().out.splitlines()
    assert epoch.startswith("epoch 1 of 1 ends at step 1, where the loss is ")
    assert summary.startswith("ok  device=cpu images_per_s=")
