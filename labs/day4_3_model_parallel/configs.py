"""The pipelines that machines with several GPUs record, at full size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.checks.lab import SYNTHETIC
from course.config import Config, rung
from labs.day4_2_fsdp.configs import RECORDED

IMAGES = 96  # of a batch: 48 a GPU, of which GPipe keeps all
PIPED: dict[str, Any] = RECORDED | {"batch_size": IMAGES, "steps": 14, "warmup_steps": 6}


def piped(pipeline: str = "1f1b", micro_batches: int = 8, **own: Any) -> Config:
    """A training of CoAtNet-5 in stages, labelled by its order, its micro-batches, and the cut.

    Args:
        own: other fields of the config.
    """
    words = ["pipe", pipeline, str(micro_batches)]
    words += [f"cut-{own['cut'].replace(',', '-')}"] if "cut" in own else []
    named = {"rung": "-".join(words), "pipeline": pipeline}
    return rung("pipeline", **PIPED | own | named | {"micro_batch": IMAGES // micro_batches})


ORDERS = ("1f1b", "gpipe", "interleaved", "zero_bubble")
CUTS = ("weights", "20", "16")  # beside "gflop", which makes the second stage begin with block 25


def pipelines(gpus: int) -> Iterator[tuple[Config, int]]:
    """What is recorded on so many GPUs, what matters most first."""
    yield from ((piped(order), gpus) for order in ORDERS)
    yield piped(cut="weights"), gpus
    yield from ((piped(order, 4), gpus) for order in ORDERS[:2])
    yield piped(micro_batches=2), gpus
    yield piped(cut=CUTS[1]), gpus
    yield piped(micro_batches=16), gpus
    yield piped("interleaved", 4), gpus
    yield piped("zero_bubble", 4), gpus
    yield piped(cut=CUTS[2]), gpus


# What a learner's processes train: enough to do that a pass is longer than what stands around it.
LIVE: dict[str, Any] = SYNTHETIC | {
    "model": "vit_tiny_patch16_224",
    "image_px": 128,
    "batch_size": 16,
    "steps": 6,
    "warmup_steps": 2,
    "lr": 1e-4,
    "precision": "fp32",
    "budget_s": 0.0,
}


def pipeline_config(pipeline: str = "1f1b", micro_batches: int = 8, **own: Any) -> Config:
    """A short training in stages for two processes on any machine.

    Args:
        own: other fields of the config.
    """
    settings = LIVE | {"pipeline": pipeline} | own
    settings["micro_batch"] = settings["batch_size"] // micro_batches
    return rung("pipeline", **settings)
