"""Every view of the training script really runs, and an open TODO changes nothing."""

from collections.abc import Iterator
from itertools import product

import pytest

from course.checks import exercises
from course.checks.compare import Folder
from course.config import rung
from course.runs.run import Run

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = [pytest.mark.formats, pytest.mark.slow]

TEXT = (exercises.SOLUTIONS / "train.py").read_text()
NAMES = exercises.names(TEXT)
TOTAL = len(NAMES)
AMP, SCALER, LAYOUT = map(NAMES.index, ("amp", "grad_scaler", "channels_last"))
TINY = {"model": "resnet18", "data": "synthetic", "image_px": 32, "batch_size": 2, "steps": 2}
# With this learning rate, the second loss shows what vanished in the first step.
TINY |= {"warmup_steps": 1, "val_steps": 1, "budget_s": 0.0, "lr": 1.0}
FP32, BF16, FP16 = "fp32", "bf16", "fp16"


@pytest.fixture(scope="module")
def views() -> Iterator[list[dict[str, Run]]]:
    """Train each view in fp32, and in bf16 and fp16 with channels last; yield runs by precision."""
    folder, runs = Folder(), [{} for _ in range(TOTAL + 1)]
    for solved, precision in product(range(TOTAL + 1), (FP32, BF16, FP16)):
        changes = {} if precision == FP32 else {"device": "auto", "channels_last": True}
        config = rung("baseline", quick=True, **TINY, **changes, precision=precision)
        name = f"{solved}-{precision}"
        runs[solved][precision] = folder.add(
            name, exercises.render(TEXT, NAMES[:solved]), config, 1
        )
    folder.work()
    assert {run.status for view in runs for run in view.values()} == {"ok"}
    yield runs
    folder.stop()


def test_every_view_trains_the_baseline_alike(views: list[dict[str, Run]]) -> None:
    (loss,) = {view[FP32].record.last_loss for view in views}
    assert loss > 0


def test_precision_counts_from_amp_on(views: list[dict[str, Run]]) -> None:
    for solved, view in enumerate(views):
        fp32, bf16, fp16 = (run.record.last_loss for run in view.values())
        assert ((bf16 == fp32), (fp16 == fp32)) == ((solved <= AMP), (solved <= AMP))


def test_scaling_touches_fp16_alone(views: list[dict[str, Run]]) -> None:
    before, scaled = views[SCALER : SCALER + 2]
    assert scaled[BF16].record.last_loss == before[BF16].record.last_loss
    assert scaled[FP16].record.last_loss != before[FP16].record.last_loss


def test_layout_counts_from_channels_last_on(views: list[dict[str, Run]]) -> None:
    for solved, view in enumerate(views):
        for precision, run in view.items():
            layout = "NHWC" if solved > LAYOUT and precision != FP32 else "NCHW"
            for kind in ("weight_layouts", "input_layouts"):
                assert {*getattr(run.record.evidence, kind)} - {"either"} == {layout}
