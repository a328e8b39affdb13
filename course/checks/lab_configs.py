"""Configs that several labs record or check, and the checks of several ranks."""

from __future__ import annotations

from typing import Any

from course.checks.lab import Exercise
from course.config import FULL_SIZE, SYNTHETIC, rung

ON_CPU = FULL_SIZE | {"device": "cpu", "steps": 4, "warmup_steps": 1}  # a step takes seconds
# The rungs of one GPU, also in other number formats, by the names of their traces.
GPU_RUNGS = {
    "device": rung("device", **FULL_SIZE),
    "amp": rung("amp", **FULL_SIZE),
    "channels_last": rung("channels_last", **FULL_SIZE),
    "tf32": rung("device", precision="tf32", **FULL_SIZE),
    "amp_fp16": rung("amp", precision="fp16", **FULL_SIZE),
    "channels_last_fp16": rung("channels_last", precision="fp16", **FULL_SIZE),
}
PINNED_WORKERS = {"persistent_workers": True, "pin_memory": True, "non_blocking": True}
# For checks of how images are read, which does not depend on the precision.
READER_SETTINGS: dict[str, Any] = {
    "model": "resnet18",
    "image_px": 64,
    "batch_size": 16,
    "steps": 8,
    "lr": 0.001,
    "budget_s": 0.0,
    "workers": 2,
    "precision": "fp32",
}
RANKS = 2  # per check: every laptop has two cores
# 687 million weights, at full size: 11 GB of weights, gradients and AdamW's two means.
COATNET_5: dict[str, Any] = SYNTHETIC | {
    "model": "coatnet_5_224",
    "fused": True,
    "steps": 20,
    "warmup_steps": 6,
}
IMAGES_PER_RANK = 24  # of CoAtNet-5
TRACED = {"profile_steps": 1, "steps": 8}

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
# Small runs use SGD: Adam would amplify the last bits of small gradients. They save nothing,
# except in the exercise `full_state_dict`.
SMALL_TRANSFORMER: dict[str, Any] = {
    "model": "vit_tiny_patch16_224",
    "optimizer": "sgd",
    "lr": 0.05,
    "save_weights": False,
}


def of_ranks(title: str, *, small: dict[str, Any] | None = None, **options: Any) -> Exercise:
    """Return a check of several ranks that train one small transformer; the speed does not count.

    Args:
        small: changes to the config of all small runs.
        options: further arguments of `Exercise`.
    """
    defaults = {"rung": "sharded", "against": "large", "settings": SMALL_VIT_SETTINGS}
    defaults |= {"gpus": RANKS, "timed": False}
    return Exercise(title=title, small=SMALL_TRANSFORMER | (small or {}), **defaults | options)
