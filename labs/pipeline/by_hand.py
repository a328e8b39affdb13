"""A pipeline whose passes send and receive by hand: the check of a learner's backward pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.functional import cross_entropy

from course.analysis import on_ranks
from labs.pipeline.schedules import schedule_order
from labs.tensor_parallel.strips import Messages

RANKS, MICRO_BATCHES, WIDTH = 3, 4, 8
SCHEDULES = ("gpipe", "1f1b")
Backward = Callable[[torch.Tensor, torch.Tensor, list], None]


def forward_pass(
    part: nn.Module, images: torch.Tensor, labels: torch.Tensor, sent: list
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a micro-batch through a rank's part; return its input and result, at the end the loss."""
    rank, last = distributed.get_rank(), distributed.get_world_size() - 1
    features = images.clone()
    if rank > 0:
        distributed.recv(features, rank - 1)
    result = part(features.requires_grad_())
    if rank == last:
        return features, cross_entropy(result, labels)
    sent.append(distributed.isend(result.detach(), rank + 1))
    return features, result


def backward_pass(features: torch.Tensor, result: torch.Tensor, sent: list) -> None:
    """Run a micro-batch backward through a rank's part: the solution of the lab's exercise."""
    rank, last = distributed.get_rank(), distributed.get_world_size() - 1
    gradient = None  # the last rank's result is the loss
    if rank < last:
        gradient = torch.empty_like(result)
        distributed.recv(gradient, rank + 1)
    result.backward(gradient)
    if rank > 0:
        sent.append(distributed.isend(features.grad, rank - 1))


def _steps(rank: int, ranks: int, function: Backward) -> list[tuple[str, str]]:
    return [_step(rank, ranks, function, schedule) for schedule in SCHEDULES]


def _step(rank: int, ranks: int, function: Backward, schedule: str) -> tuple[str, str]:
    """Run a step; return what is wrong with a rank's gradient, and with its messages."""
    torch.manual_seed(0)
    network = nn.Sequential(*[nn.Linear(WIDTH, WIDTH) for _ in range(ranks)])
    images, labels = torch.randn(MICRO_BATCHES, WIDTH), torch.arange(MICRO_BATCHES)
    cross_entropy(network(images), labels, reduction="sum").backward()
    part, sent = network[rank], list[Any]()
    expected = part.weight.grad
    part.weight.grad = None
    kept = {}
    with Messages() as messages:
        for kind, _, number in schedule_order(schedule, ranks, MICRO_BATCHES)[rank]:
            if kind == "F":
                kept[number] = forward_pass(part, images[[number]], labels[[number]], sent)
            else:
                function(*kept.pop(number), sent)
    due = MICRO_BATCHES * ((rank > 0) + (rank < ranks - 1))
    problems = [""] * ranks
    if messages.counts != {"send": due, "recv": due}:
        counts = dict(messages.counts)
        problems[rank] = f"its messages are {counts}, expected {due} in each direction"
    distributed.all_gather_object(problems, problems[rank])
    if any(problems):  # some messages would be waited for until a timeout
        return "", problems[rank]
    _wait(sent)
    if part.weight.grad is None:
        return "its weights have no gradient: run `result.backward(…)`", ""
    if torch.allclose(part.weight.grad, expected, atol=1e-5):
        return "", ""
    norm, expected_norm = (float(gradient.norm()) for gradient in (part.weight.grad, expected))
    return f"the norm of its gradient is {norm:.3g}, expected {expected_norm:.3g}", ""


def check_gradients(function: Backward) -> str:
    """Check that each rank's gradients are those of the full network, in two orders."""
    for rank, steps in enumerate(on_ranks(_steps, RANKS, function)):
        for schedule, problems in zip(SCHEDULES, steps):
            assert not any(problems), (
                f"rank {rank} of {RANKS}, {schedule}: {''.join(problems)}. A rank starts from the "
                f"gradient that the next rank sends, and sends that of its own input to the rank "
                f"before"
            )
    return f"{RANKS} ranks, {MICRO_BATCHES} micro-batches, two orders: the full network's gradients"


def check_handles(function: Backward) -> str:
    """Check that a send can be waited for at the end of the step."""
    for rank, handles in enumerate(on_ranks(_handles, RANKS, function)):
        assert handles == (rank > 0), (
            f"rank {rank} of {RANKS}: it appends {handles} handles to `sent`, expected "
            f"{int(rank > 0)}: the rank before may not receive yet, so use `distributed.isend`"
        )
    return "sends don't wait; their handles are in `sent`"


def _handles(rank: int, ranks: int, function: Backward) -> int:
    """Run one micro-batch; return the number of handles that its backward pass adds."""
    part, sent = nn.Linear(WIDTH, WIDTH), list[Any]()
    kept = forward_pass(part, torch.randn(1, WIDTH), torch.zeros(1, dtype=int), sent)
    before = len(sent)
    with Messages():
        function(*kept, sent)
        _wait(sent)
        distributed.barrier()
    return len(sent) - before


def _wait(sent: list[Any]) -> None:
    for handle in sent:
        if not hasattr(handle, "wait"):
            raise TypeError(f"`sent` has {handle!r:.50}: append what `distributed.isend` returns")
        handle.wait()
