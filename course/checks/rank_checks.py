"""What checks of several ranks of one network share: what they train, and where they look."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.checks.lab import Mechanism
from course.checks.lab_configs import RANKS
from course.runs.run import Run

# A vision transformer of 12 blocks, of few pixels: what is looked for is the same.
SMALL_VIT_SETTINGS: dict[str, Any] = {
    "model": "vit_tiny_patch16_224",
    "image_px": 64,
    "batch_size": 8,
    "steps": 4,
    "warmup_steps": 1,
    "val_steps": 1,
    "lr": 1e-4,
    "precision": "fp32",
    "budget_s": 0.0,
}
# Small runs learn with SGD: Adam would make much of the last bits of small gradients.
SMALL_TRANSFORMER: dict[str, Any] = {
    "model": "vit_tiny_patch16_224",
    "optimizer": "sgd",
    "lr": 0.05,
}


def seen_by_ranks(run: Run) -> list[dict[str, Any]]:
    """The evidence of each rank."""
    return [rank["evidence"] for rank in run.ranks]


def of_ranks(
    title: str,
    *,
    todo: int,
    seen: Callable[[Run], str],
    word: str,
    rung: str = "sharded",
    gpus: int = RANKS,
    configs: tuple[dict[str, Any], ...] = ({},),
    small: dict[str, Any] | None = None,
    **changes: Any,
) -> Mechanism:
    """A check of several ranks that train one small transformer, whose speed is not looked at.

    Args:
        changes: fields of the rung's config; for all else see `Mechanism`.
    """
    return Mechanism(
        title=title,
        todo=todo,
        rung=rung,
        against="large",
        seen=seen,
        limits=lambda cfg, place: "",
        word=word,
        changes=changes,
        settings=SMALL_VIT_SETTINGS,
        gpus=gpus,
        timed=False,
        configs=configs,
        small=SMALL_TRANSFORMER | (small or {}),
    )
