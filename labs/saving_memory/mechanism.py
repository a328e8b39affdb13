"""What shows the lab's mechanism in a small run: micro-batches, and what is kept for backward."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.lab import NOT_APPLICABLE, Fact, NotApplicable, Rank, facts

NEARLY = 0.3  # of memory, which depends on how a script names its tensors


def passes(rank: Rank) -> Any:
    """Return the images of a step's micro-batches, and how much each image counts in the loss."""
    limit = rank.config.micro_batch
    if not limit or rank.config.pipeline:
        return NOT_APPLICABLE
    pairs = rank.evidence.passes
    return {
        "number of images": sum(size for size, _ in pairs),
        "size": "above cfg.micro_batch" if any(size > limit for size, _ in pairs) else "allowed",
        "number": len(pairs),
        "factor of the loss per image": facts.distinct(
            [round(factor / size, 6) for size, factor in pairs]
        ),
    }


def kept(path: str) -> Callable[[Rank], Any]:
    """Return a function that reads the MiB kept for backward.

    They are not applicable to a pipeline, where they depend on its order, and to micro-batches,
    which may be copies or views of the batch.
    """
    gib_of = facts.entry(path)

    def read(rank: Rank) -> float | NotApplicable:
        gib = gib_of(rank)
        is_split = rank.config.pipeline or rank.config.micro_batch
        return NOT_APPLICABLE if is_split or gib is NOT_APPLICABLE else 1024 * gib

    return read


def recomputed(rank: Rank) -> dict[str, int]:
    """Return how often backward computed each operator of the forward pass."""
    counts = rank.evidence.recomputed
    return {f"number of {name} calls repeated in backward": n for name, n in counts.items()}


def repeated(rank: Rank) -> int | NotApplicable:
    """Return the distance between blocks that backward computes again: 2 for every second one."""
    pairs = zip(rank.notes.repeated, rank.notes.repeated[1:])
    return min((abs(block - other) for block, other in pairs), default=NOT_APPLICABLE)


FACTS = (
    Fact("the micro-batches", passes,
         "`images.split(size)` and labels.split(size) give as few micro-batches as possible; "
         "multiply each loss by `len(targets) / len(labels)`"),
    Fact("distance between blocks that backward computes again", repeated,
         "replace block.forward of each block that cfg.checkpointing names; in a loop, a lambda "
         "calls the last block's"),
    Fact("", recomputed,
         "checkpoint each block that `models.blocks(…)` returns and the config names, separately, "
         "with use_reentrant=False, which repeats only what backward needs"),
    Fact("memory in MiB kept for the backward pass", kept("kept_gib"),
         "checkpoint or offload exactly the blocks that the config names, and only in the runs "
         "that it names", tolerance=NEARLY),
    Fact("memory in MiB kept for the backward pass of a later step", kept("later.kept_gib"),
         "checkpoint or offload in every step", tolerance=NEARLY),
)  # fmt: skip
