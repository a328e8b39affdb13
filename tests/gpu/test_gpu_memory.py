"""A GPU's memory: running out of it is recorded as such, and its peak is as predicted."""

from collections.abc import Callable

import pytest
import torch

from course import launch
from course.runs.run import Run
from course.training.memory_prediction import predict_memory
from trainspeed import measured_memory as memory

pytestmark = pytest.mark.gpu
Trained = Callable[..., Run]


def test_a_limit_is_kept(trained: Trained) -> None:
    run = trained("small memory", status="oom")
    assert "OutOfMemoryError" in run.record.error
    assert 1 < run.record.peak_gib <= run.record.reserved_gib <= run.config.memory_gib
    assert run.record.images_per_s is None
    assert "lower batch_size" in run.explain()
    again = launch("solutions/train.py", run.config, time_min=2)
    assert again.folder == run.folder  # a second run would have the same result


def test_a_batch_that_is_too_large_runs_out_of_memory(trained: Trained) -> None:
    run = trained("too large", status="oom")
    assert "OutOfMemoryError" in run.record.error
    card_gib = memory.total_gib(torch.device("cuda"))
    assert card_gib / 2 < run.record.peak_gib < card_gib


@pytest.mark.parametrize(
    "name, left_out_gib",
    [
        ("amp", 0),
        ("channels_last", 0),
        ("device", 0.5),  # cuDNN's workspaces in fp32
    ],
)
def test_the_peak_is_as_predicted(trained: Trained, name: str, left_out_gib: float) -> None:
    run = trained(name)
    measured, predicted = run.record.peak_gib, predict_memory(run.config).peak_gib
    print(f"{name}: {measured:.2f} GiB, predicted {predicted:.2f}, {predicted / measured - 1:+.1%}")
    assert abs(measured - predicted) <= 0.05 * measured + left_out_gib
