"""What is noted of a step's loss, whatever its labels look like."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from course.training.evidence import Observer

SCORES = torch.randn(4, 5)
HARD = torch.tensor([0, 1, 2, 3])
SOFT = torch.eye(5)[HARD] * 0.75 + torch.eye(5)[HARD + 1] * 0.25


def seen(labels: torch.Tensor, times: float = 1.0, **how: float) -> dict:
    """The evidence of one backward pass from a loss, multiplied."""
    scores = SCORES.clone().requires_grad_()
    observer = Observer(lambda: "backward", "cpu")
    with observer:
        (times * cross_entropy(scores, labels, **how)).backward()
    return observer.evidence()


def test_labels_of_one_class() -> None:
    assert (seen(HARD)["loss_gradient"], seen(HARD)["mixed"]) == (1.0, 0.0)


def test_labels_of_several_classes() -> None:
    found = seen(SOFT)
    assert (found["loss_gradient"], found["mixed"]) == (1.0, 1.0)
    assert "loss_types" not in found  # the product of labels and scores is not seen


def test_the_share_of_mixed_labels() -> None:
    labels = torch.cat([torch.eye(5)[HARD[:1]], SOFT[1:]])
    assert seen(labels)["mixed"] == 0.75


@pytest.mark.parametrize("labels", [HARD, SOFT])
def test_a_scaled_loss_is_seen(labels: torch.Tensor) -> None:
    assert seen(labels, 1024.0)["loss_gradient"] == 1024


def test_smoothing_leaves_less_at_the_class() -> None:
    found = seen(HARD, label_smoothing=0.1)
    assert found["loss_gradient"] == pytest.approx(0.9)
    assert found["mixed"] == 1.0


@pytest.mark.parametrize("training, found", [(True, "batch"), (False, "running")])
def test_by_which_statistics_batchnorm_normalises(training: bool, found: str) -> None:
    observer = Observer(lambda: "validation", "cpu")
    with observer, torch.no_grad():
        torch.nn.BatchNorm2d(3).train(training)(torch.randn(2, 3, 4, 4))
    assert observer.evidence()["statistics"] == {found: 1}
