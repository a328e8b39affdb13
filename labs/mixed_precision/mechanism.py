"""What shows the lab's mechanism in a small run: number formats, and the scale of the loss."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.lab import NOT_APPLICABLE, Fact, NotApplicable, Rank, facts

SMALL = 4  # a factor that lets most small gradients underflow


def loss_start(path: str) -> Callable[[Rank], Any]:
    """Return a function that reads the factor by which backward scales the loss."""
    factor_of = facts.entry(path)

    def read(rank: Rank) -> Any:
        factor = factor_of(rank)
        if factor is NOT_APPLICABLE or rank.config.pipeline:
            return NOT_APPLICABLE
        return "a scale" if rank.config.precision == "fp16" and factor > SMALL else factor

    return read


def rescaled(rank: Rank) -> str | NotApplicable:
    """Return how the scale of the loss in a later step compares with the first step's."""
    if rank.config.precision != "fp16" or rank.config.pipeline:
        return NOT_APPLICABLE
    first, later = rank.evidence.loss_gradient, rank.evidence.later
    if NOT_APPLICABLE in (first, later) or later.loss_gradient is NOT_APPLICABLE:
        return NOT_APPLICABLE
    later = later.loss_gradient
    return "smaller than at first" if later < first else "the same as at first"


FACTS = (
    Fact("type of the forward pass", facts.kinds("forward_types"),
         "enter `torch.autocast(…)` with dtype= and enabled= that follow cfg.precision"),
    Fact("type of a later forward pass", facts.kinds("later.forward_types"),
         "enter autocast in every step"),
    Fact("type of the validation's forward pass", facts.kinds("validation.forward_types"),
         "pass autocast to validate"),
    Fact("type of the loss", facts.kinds("loss_types"),
         "compute the loss under autocast, or from scores.float()"),
    Fact("autocast in the backward pass", facts.entry("autocast_in_backward"),
         "leave autocast before backward"),
    Fact("factor of the loss at the start of backward", loss_start("loss_gradient"),
         "multiply the loss only by the scaler's scale, in fp16, which is large at first (on Day 4 "
         "also by a micro-batch's share of the batch); DDP itself averages over the ranks"),
    Fact("factor of the loss in a later step", loss_start("later.loss_gradient"),
         "call scaler.scale(loss).backward() in every step"),
    Fact("scale of the loss after an overflow", rescaled,
         "the scaler halves it: create one scaler before the loop, with PyTorch's factors and "
         "interval, and call scaler.update() after each scaler.step(optimizer)"),
    Fact("skipping of the step with an overflow", facts.entry("overflow.skipped"),
         "use one scaler for all steps: scaler.step(optimizer), then scaler.update()"),
)  # fmt: skip
