"""Trainings of lab 4.3: tensor parallelism and pipelines, recorded at full size and live."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.checks.lab import SYNTHETIC, Recording
from course.checks.lab_configs import COATNET_5, IMAGES_PER_RANK, TRACED
from course.config import Config, rung

FSDP: dict[str, Any] = {"shard": "zero3", "gather_bf16": True, "unit_blocks": 11}  # lab 4.2's best
BATCH = 96  # images of a pipeline's update: 48 per GPU, all of which GPipe keeps
# Large enough that a pass takes longer than the launches and messages around it.
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


def pipeline_config(pipeline: str = "1f1b", micro_batches: int = 8, **settings: Any) -> Config:
    """Return the config of a short pipeline for two processes on any machine.

    Args:
        settings: further fields of the Config.
    """
    values = LIVE | {"pipeline": pipeline} | settings
    values["micro_batch"] = values["batch_size"] // micro_batches
    return rung("pipeline", **values)


def _tensor_config(gpus: int, share: int = IMAGES_PER_RANK, **settings: Any) -> Config:
    """Return the config of CoAtNet-5 with `share` images per GPU, by default under DDP."""
    words = ["tensor"] * (settings.get("tensor", 1) > 1) + ["zero3"] * bool(settings.get("shard"))
    words = (words or ["ddp"]) + ["traced"] * bool(settings.get("profile_steps"))
    size = {"rung": "-".join([*words, str(share)]), "batch_size": share * gpus}
    return rung("tensor", **COATNET_5 | {"tensor": 1} | settings | size)


def _recorded_pipeline(
    pipeline: str = "1f1b", micro_batches: int = 8, stage_split: str = ""
) -> Config:
    """Return the config of CoAtNet-5 in stages at full size."""
    words = ["pipe", pipeline, str(micro_batches)]
    settings = COATNET_5 | {"batch_size": BATCH, "steps": 14, "warmup_steps": 6}
    if stage_split:
        words.append(f"cut-{stage_split}")
        settings["stage_split"] = stage_split
    settings |= {"pipeline": pipeline, "micro_batch": BATCH // micro_batches}
    return rung("pipeline", **settings, rung="-".join(words))


def _tensor_configs(gpus: int) -> Iterator[tuple[Config, int]]:
    for share in (IMAGES_PER_RANK, 2 * IMAGES_PER_RANK):  # the pipelines have the larger share
        yield _tensor_config(gpus, share), gpus
        yield _tensor_config(gpus, share, tensor=2), gpus
        yield _tensor_config(gpus, share, **FSDP), gpus
    yield _tensor_config(gpus, tensor=2, **TRACED), gpus
    if gpus >= 4:
        yield _tensor_config(gpus, tensor=2, shard="zero3", unit_blocks=11), gpus


def _pipeline_configs(gpus: int) -> Iterator[tuple[Config, int]]:
    for schedule in ("1f1b", "gpipe", "interleaved", "zero_bubble"):
        yield _recorded_pipeline(schedule), gpus
    yield _recorded_pipeline(stage_split="weights"), gpus
    yield _recorded_pipeline("1f1b", 4), gpus
    yield _recorded_pipeline("gpipe", 4), gpus
    yield _recorded_pipeline(micro_batches=2), gpus
    yield _recorded_pipeline(stage_split="20"), gpus
    yield _recorded_pipeline(micro_batches=16), gpus
    yield _recorded_pipeline("interleaved", 4), gpus
    yield _recorded_pipeline("zero_bubble", 4), gpus
    yield _recorded_pipeline(stage_split="16"), gpus


RECORDINGS = (
    Recording("parallel", several=_tensor_configs),
    Recording("parallel", several=_pipeline_configs),
)
