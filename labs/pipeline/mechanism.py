"""What shows the lab's mechanism in a small run: the passes of stages."""

from __future__ import annotations

from course.lab import NOT_APPLICABLE, Fact, Rank


def actions(rank: Rank) -> list[str]:
    """Return what a pipeline's stages did in the last step."""
    steps = rank.evidence.actions
    last = [] if steps in ({}, NOT_APPLICABLE) else [*steps.values()][-1]
    return [f"{kind} of micro-batch {batch} in stage {at}" for kind, at, batch, *_ in last]


FACTS = (
    Fact("the pass of a pipeline stage", actions, "F is forward; B, I and W, backward", "pass"),
)  # fmt: skip
