"""Settings and evidence that the checks of several ranks share."""

from __future__ import annotations

from typing import Any

from course.checks.lab import Check
from course.checks.lab_configs import RANKS

# A vision transformer of 12 blocks, with few pixels, which the checks do not depend on.
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
# Small runs use SGD: Adam would amplify the last bits of small gradients.
SMALL_TRANSFORMER: dict[str, Any] = {
    "model": "vit_tiny_patch16_224",
    "optimizer": "sgd",
    "lr": 0.05,
}


def of_ranks(title: str, *, small: dict[str, Any] | None = None, **options: Any) -> Check:
    """Return a check of several ranks that train one small transformer; the speed does not count.

    Args:
        small: changes to the config of all small runs.
        options: further arguments of `Check`.
    """
    defaults = {"rung": "sharded", "against": "large", "settings": SMALL_VIT_SETTINGS}
    defaults |= {"gpus": RANKS, "timed": False}
    return Check(title=title, small=SMALL_TRANSFORMER | (small or {}), **defaults | options)
