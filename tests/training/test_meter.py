"""The meter: phases in their order, warm-up left out, and no batch fetched for nothing."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from cases import for_all

from course.config import rung
from course.runs.record import PHASES
from course.runs.run import Run
from course.training.meter import Meter
from course.training.recorder import Recorder

CPU = torch.device("cpu")
TINY = {"data": "synthetic", "batch_size": 4, "image_px": 32, "epochs": 1, "warmup_steps": 0}


class Batches:
    """Batches of noise that count how many of them were fetched."""

    def __init__(self, length: int = 100) -> None:
        self.length, self.fetched = length, 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        for _ in range(self.length):
            self.fetched += 1
            yield torch.randn(4, 8)


def recorder(**changes) -> Recorder:
    run = Recorder(None)
    run.config = rung("baseline", quick=True, **{**TINY, **changes})
    return run


def train(meter: Meter, batches: Batches, epoch: int = 0) -> None:
    """A real network through every phase of every step."""
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


class HandClock:
    """A clock that the test sets, so that every time is exact."""

    now = 0.0

    def mark(self) -> float:
        return self.now

    def is_past(self, mark: float) -> bool:
        return True

    def seconds(self, begin: float, end: float) -> float:
        return end - begin


Seconds = tuple[float, float, float, float, float]  # of the five phases


def walk(meter: Meter, steps: list[Seconds], losses: list[float], epoch: int = 0) -> None:
    """Steps that compute nothing; each phase takes its seconds by the meter's HandClock."""
    for _, seconds, loss in zip(meter.steps(Batches(len(steps)), epoch), steps, losses):
        for phase, value in zip(PHASES, seconds):
            meter.clock.now += value
            meter.lap(phase, loss=torch.tensor(loss) if phase == "optimizer" else None)


def metered_by_hand(**changes) -> Meter:
    meter = Meter(recorder(**changes), CPU)
    meter.clock = HandClock()
    return meter


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a run that a job has begun."""
    config = rung("baseline", quick=True, **{**TINY, "epochs": 2, "steps": 3})
    (tmp_path / "config.json").write_text(config.to_json())
    return tmp_path


@for_all("epochs, length, steps", [(1, 100, 5), (2, 100, 5), (1, 3, 3)])
def test_no_more_batches_are_fetched_than_trained(epochs: int, length: int, steps: int) -> None:
    meter, batches = Meter(recorder(steps=5, epochs=epochs), CPU), Batches(length)
    for epoch in range(epochs):
        train(meter, batches, epoch)
    assert batches.fetched == meter.step == steps * epochs
    assert meter.summary()["steps_measured"] == steps * epochs


def test_steps_are_written_with_their_phases(folder: Path) -> None:
    run = Run(folder)
    meter = Meter(Recorder(run), CPU)
    for epoch in range(2):
        train(meter, Batches(), epoch)
    steps = run.steps
    assert steps["step"].tolist() == [0, 1, 2, 3, 4, 5]
    assert steps["epoch"].tolist() == [0, 0, 0, 1, 1, 1]
    phases = steps[[f"{phase}_s" for phase in PHASES]]
    assert (phases > 0).all(axis=None)
    assert steps["step_s"].tolist() == pytest.approx(phases.sum(axis=1).tolist())
    assert steps["loss"].notna().all()


def test_steps_are_written_while_training_goes_on(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("course.training.meter.FLUSH_S", 0)
    run = Run(folder)
    meter = Meter(Recorder(run), CPU)
    for finished, _ in enumerate(meter.steps(Batches(), 0)):
        assert len(run.steps) == finished
        for phase in PHASES:
            meter.lap(phase, loss=torch.tensor(1.0) if phase == "optimizer" else None)


def test_each_phase_gets_its_own_time() -> None:
    meter = metered_by_hand(steps=2)
    walk(meter, [(1, 2, 3, 4, 5)] * 2, [1.0] * 2)
    summary = meter.summary()
    assert [summary[f"{phase}_s"] for phase in PHASES] == [1, 2, 3, 4, 5]
    assert (summary["step_s"], summary["images_per_s"]) == (15, pytest.approx(4 / 15))


def test_time_between_epochs_is_in_no_step() -> None:
    meter = metered_by_hand(steps=1, epochs=2)
    walk(meter, [(1, 1, 1, 1, 1)], [1.0])
    meter.clock.now += 100  # validation
    walk(meter, [(1, 1, 1, 1, 1)], [1.0], epoch=1)
    assert meter.summary()["step_s_q3"] == 5


def test_warmup_of_the_run_is_left_out() -> None:
    meter = metered_by_hand(steps=3, epochs=2, warmup_steps=4)
    walk(meter, [(9, 9, 9, 9, 9)] * 3, [6.0, 5.0, 4.0])
    walk(meter, [(8, 8, 8, 8, 8), (1, 1, 1, 1, 1), (1, 1, 1, 1, 2)], [3.0, 2.0, 1.0], epoch=1)
    summary = meter.summary()
    assert summary["steps_measured"] == 2
    assert summary["step_s"] == 5.5
    assert (summary["first_loss"], summary["last_loss"]) == (6, 1)  # the losses are of all steps


def test_summary_has_medians_and_quartiles() -> None:
    meter = metered_by_hand(steps=5, batch_size=60)
    walk(meter, [(1, 1, 1, 0, total - 3) for total in (30, 4, 20, 10, 6)], [1.0] * 5)
    summary = meter.summary()
    assert [summary[f"step_s{part}"] for part in ("_q1", "", "_q3")] == [6, 10, 20]
    # The slow quartile of the time is the low one of the rate.
    assert [summary[f"images_per_s{part}"] for part in ("_q1", "", "_q3")] == [3, 6, 10]


def test_warmup_that_took_every_step_measures_nothing() -> None:
    meter = Meter(recorder(steps=5, warmup_steps=3), CPU)
    train(meter, Batches(3))
    summary = meter.summary()
    assert {name for name in summary if "loss" not in name} == {"steps_measured"}
    assert summary["steps_measured"] == 0 and min(summary["first_loss"], summary["last_loss"]) > 0


@pytest.mark.parametrize("loss", (float("nan"), float("inf"), float("-inf")))
def test_loss_that_is_no_number_is_none(folder: Path, loss: float) -> None:
    run = Run(folder)
    meter = Meter(Recorder(run), CPU)
    meter.clock = HandClock()
    walk(meter, [(1, 1, 1, 1, 1)] * 3, [1.5, 0.5, loss])
    assert (meter.summary()["first_loss"], meter.summary()["last_loss"]) == (1.5, None)
    text = (folder / "steps.jsonl").read_text()
    assert '"loss": null' in text and "NaN" not in text and "Infinity" not in text


def test_phase_out_of_order_names_the_order() -> None:
    meter = Meter(recorder(), CPU)
    said = r"lap\('backward'\) came where 'forward' was due.*load, forward, loss, backward"
    with pytest.raises(RuntimeError, match=said):
        for _ in meter.steps(Batches(), 0):
            meter.lap("load")
            meter.lap("backward")


@for_all("laps", (["forward"], ["load", "load"], ["load", "forwards"]))
def test_other_phases_are_refused(laps: list[str]) -> None:
    meter = Meter(recorder(), CPU)
    with pytest.raises(RuntimeError, match=f"lap\\('{laps[-1]}'\\) came where"):
        for _ in meter.steps(Batches(), 0):
            for phase in laps:
                meter.lap(phase)


def test_update_needs_the_loss_and_the_others_none() -> None:
    meter = Meter(recorder(), CPU)
    next(meter.steps(Batches(), 0))
    with pytest.raises(RuntimeError, match="the last with loss="):
        meter.lap("load", loss=torch.tensor(1.0))
    for phase in PHASES[:-1]:
        meter.lap(phase)
    with pytest.raises(RuntimeError, match="the last with loss="):
        meter.lap("optimizer")


@for_all("given", range(len(PHASES)))
def test_forgotten_laps_are_named_with_their_step(given: int) -> None:
    meter = Meter(recorder(), CPU)
    said = f"step 1 ended without meter.lap for {', '.join(PHASES[given:])}$"
    with pytest.raises(RuntimeError, match=said):
        for _ in meter.steps(Batches(), 0):
            laps = PHASES[:given] if meter.step == 1 else PHASES
            for phase in laps:
                loss = torch.tensor(1.0) if phase == "optimizer" else None
                meter.lap(phase, loss=loss)


def test_lap_too_many_is_refused_in_the_last_step_too() -> None:
    meter = Meter(recorder(steps=1), CPU)
    with pytest.raises(RuntimeError, match="lap"):
        for _ in meter.steps(Batches(), 0):
            for phase in PHASES:
                meter.lap(phase, loss=torch.tensor(1.0) if phase == "optimizer" else None)
            meter.lap("load")


def test_lap_before_any_step_is_refused() -> None:
    meter = Meter(recorder(), CPU)
    with pytest.raises(RuntimeError, match="lap"):
        meter.lap("optimizer", loss=torch.tensor(1.0))


def test_several_processes_without_a_group_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(RuntimeError, match="2 processes were started.*no process group"):
        Meter(recorder(), CPU)


def test_meter_describes_the_machine(capsys: pytest.CaptureFixture) -> None:
    run = recorder(steps=1)
    train(Meter(run, CPU), Batches())
    run.finish("ok")
    epoch, told = capsys.readouterr().out.splitlines()
    assert epoch.startswith("epoch 1 of 1 ends at step 1, where the loss is ")
    assert told.startswith("ok  device=cpu images_per_s=")


def micro_batches(meter: Meter, passes: int) -> None:
    """One step, the passes of which take 1, 2 and 3 seconds each."""
    for _ in meter.steps(Batches(1), 0):
        meter.lap("load")
        for _ in range(passes):
            for phase, seconds in (("forward", 1), ("loss", 2), ("backward", 3)):
                meter.clock.now += seconds
                meter.lap(phase)
        meter.clock.now += 4
        meter.lap("optimizer", loss=torch.tensor(1.0))


@for_all("passes", [1, 3, 4])
def test_phases_of_micro_batches_are_added_up(passes: int) -> None:
    """As many as the config has, or another number: whoever trains decides."""
    meter = metered_by_hand(steps=1, batch_size=4, micro_batch=2, warmup_steps=0)
    micro_batches(meter, passes)
    found = meter.summary()
    assert found["forward_s"] == passes and found["loss_s"] == 2 * passes
    assert found["backward_s"] == 3 * passes and found["optimizer_s"] == 4


def test_a_phase_out_of_its_order_is_refused_between_micro_batches() -> None:
    meter = metered_by_hand(steps=1, micro_batch=2)
    with pytest.raises(RuntimeError, match=r"meter.lap\('loss'\) came where 'forward' was due"):
        for _ in meter.steps(Batches(1), 0):
            for phase in ("load", "forward", "loss", "backward", "loss"):
                meter.lap(phase)
