"""The training script: it learns, rungs compute the same, and the record shows both."""

import math
from pathlib import Path

import pytest
import torch

from course import launch, rung
from course.config import Config
from course.data import default_set
from course.training import optimizers

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

CHANCE = 1 / len(default_set.PHOTOGRAPHS)


@pytest.mark.slow
def test_training_on_the_default_set_beats_chance(runs_root: Path) -> None:
    changes = {
        "model": "resnet18",
        "image_px": 32,
        "batch_size": 16,
        "steps": 15,
        "epochs": 2,
        "val_steps": 6,
        "lr": 0.01,
    }
    run = launch("solutions/train.py", rung("baseline", quick=True, **changes), time_min=10)
    run.wait()
    # 96 images: chance has a standard deviation of 2.5 %, so this is five of them away.
    assert run.record.val_top1 > 3 * CHANCE
    losses = run.steps["loss"]  # those of one batch of 16 fluctuate, so compare means of many
    assert losses[-15:].mean() < losses[:15].mean()
    assert len(run.record.epochs) == 2


TINY = {
    "image_px": 32,
    "batch_size": 2,
    "steps": 3,
    "warmup_steps": 1,
    "val_steps": 1,
    "data": "synthetic",
    "model": "resnet18",
}


def first_loss(config: Config) -> float:
    run = launch("solutions/train.py", config)
    run.wait()
    assert run.record.steps_measured == 2
    return run.steps["loss"][0]


@pytest.fixture(scope="module")
def loss_of_the_baseline(tmp_path_factory: pytest.TempPathFactory) -> float:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COURSE_RUNS", str(tmp_path_factory.mktemp("runs")))
        return first_loss(rung("baseline", quick=True, **TINY))


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, changes", [("amp", {}), ("channels_last", {}), ("fused", {"precision": "fp16"})]
)
def test_a_rung_keeps_the_loss_of_the_baseline(
    runs_root: Path, loss_of_the_baseline: float, name: str, changes: dict
) -> None:
    loss = first_loss(rung(name, quick=True, **TINY | changes))
    assert loss == pytest.approx(loss_of_the_baseline, rel=0.02)


def test_a_skipped_first_step_leaves_fused_momentum_defined() -> None:
    """PyTorch's own buffer would then be uninitialised memory."""
    model = torch.nn.Linear(300, 300, bias=False)
    junk = [torch.full((300, 300), 1e30) for _ in range(8)]
    del junk  # so that uninitialised memory is not accidentally zero
    optimizer = optimizers.create(model.parameters(), rung("fused", lr=0.1))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)
    for factor in (math.inf, 1e-3):
        optimizer.zero_grad()
        scaler.scale((model.weight * factor).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
    assert model.weight.abs().max() < 1
