"""The runs of one network over several GPUs that machines record, at full size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.checks.lab import Recording
from course.config import Config, rung
from labs.day4_2_fsdp.configs import RECORDED, SHARE, TRACED

PURPOSE = "parallel"
GRID = 4


def shared_out(gpus: int, share: int = SHARE, **own: Any) -> Config:
    """A training of CoAtNet-5 with so many images for each GPU, in one batch, labelled by how.

    Args:
        own: fields of the config; without tensor it is DDP, or with shard="zero3" FSDP2.
    """
    is_shared = own.get("tensor", 1) > 1
    words = ["tensor"] * is_shared + ["zero3"] * bool(own.get("shard"))
    words = (words or ["ddp"]) + ["traced"] * bool(own.get("profile_steps"))
    named = {"rung": "-".join([*words, str(share)]), "batch_size": share * gpus}
    return rung("tensor", **RECORDED | {"tensor": 1} | own | named)


FSDP: dict[str, Any] = {"shard": "zero3", "policy": True, "unit_blocks": 11}  # lab 4.2's best


def _tensors(gpus: int) -> Iterator[tuple[Config, int]]:
    """What matters most first. The larger share is that of the pipelines."""
    for share in (SHARE, 2 * SHARE):
        yield shared_out(gpus, share), gpus
        yield shared_out(gpus, share, tensor=2), gpus
        yield shared_out(gpus, share, **FSDP), gpus
    yield shared_out(gpus, tensor=2, **TRACED), gpus
    if gpus >= GRID:
        yield shared_out(gpus, tensor=2, shard="zero3", unit_blocks=11), gpus


RECORDINGS = (Recording(PURPOSE, several=_tensors),)
