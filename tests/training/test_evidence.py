"""What is noted of a step's loss, whatever its labels look like."""

import pytest
import torch
import torch.utils.checkpoint
from torch.nn.functional import cross_entropy

from course.training.evidence.graph_breaks import Compiled
from course.training.evidence.operators import Observer

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


def printing(images: torch.Tensor) -> torch.Tensor:
    images = images + 1
    print(end="")
    return images * 2


def whole(images: torch.Tensor) -> torch.Tensor:
    return (images + 1) * 2


def compiled(function, *epochs: list[torch.Tensor]) -> dict:
    """What is told of a function that is compiled, and called with each of an epoch's batches."""
    torch._dynamo.reset()
    watch, made = Compiled(), torch.compile(function, backend="eager", dynamic=False)
    for batches in epochs:
        for number, batch in enumerate(batches):
            made(batch)
            if batches is epochs[0] and number == 0:
                watch.end_warmup()
        watch.end_epoch()
    return watch.evidence()


def test_a_graph_is_made_once_and_used() -> None:
    batches = [torch.ones(4, 3)] * 2
    assert compiled(whole, batches, batches) == {"graphs": [1, 1], "warmed_up": 1, "breaks": {}}


def test_a_new_shape_is_a_new_graph() -> None:
    assert compiled(whole, [torch.ones(4, 3)], [torch.ones(5, 3)])["graphs"] == [1, 2]
    found = compiled(whole, [torch.ones(4, 3), torch.ones(5, 3)])  # in a later step of the epoch
    assert (found["warmed_up"], found["graphs"]) == (1, [2])


def test_what_is_never_called_is_no_graph() -> None:
    assert compiled(whole, [], [])["graphs"] == [0, 0]


def test_a_break_is_told_with_its_reason_and_only_that_of_this_run() -> None:
    found = compiled(printing, [torch.ones(4, 3)])
    ((reason, times),) = found["breaks"].items()
    assert found["graphs"] == [2] and times == 1 and "print" in reason
    found = compiled(whole, [torch.ones(4, 3)])
    assert found == {"graphs": [1], "warmed_up": 1, "breaks": {}}


def passes(*parts: int, reduction: str = "mean") -> dict:
    """The evidence of a batch of four in such parts, each weighed by its share."""
    observer = Observer(lambda: "backward", "cpu")
    scores = SCORES.clone().requires_grad_()
    with observer:
        for x, y in zip(scores.split(list(parts)), HARD.split(list(parts))):
            weight = 1 / 4 if reduction == "sum" else len(y) / 4
            (weight * cross_entropy(x, y, reduction=reduction)).backward()
            observer.end_pass()
    return observer.evidence()


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_passes_tell_how_much_each_micro_batch_counts(reduction: str) -> None:
    found = passes(3, 1, reduction=reduction)
    assert found["passes"] == [(3, 0.75), (1, 0.25)]
    assert found["loss_gradient"] == 1


def test_what_is_computed_again_is_counted_in_backward() -> None:
    """It stops as soon as all is there that backward needs: before the last layer computes."""
    layer, phase = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)), "forward"
    images = torch.randn(2, 4, requires_grad=True)
    observer = Observer(lambda: phase, "cpu")
    with observer:
        scores = torch.utils.checkpoint.checkpoint(layer, images, use_reentrant=False)
        phase = "backward"
        scores.sum().backward()
    assert observer.evidence()["recomputed"] == {"addmm": 1}
