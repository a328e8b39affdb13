"""Trainings of this lab: tensor parallelism, recorded at full size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course import Config, rung
from course.lab import configs

FSDP: dict[str, Any] = {
    "shard": "zero3",
    "gather_bf16": True,
    "unit_blocks": 11,
}  # the lab on FSDP's best


def _tensor_config(gpus: int, share: int = configs.IMAGES_PER_RANK, **settings: Any) -> Config:
    """Return the config of CoAtNet-5 with `share` images per GPU, by default under DDP."""
    words = ["tensor"] * (settings.get("tensor", 1) > 1) + ["zero3"] * bool(settings.get("shard"))
    words = (words or ["ddp"]) + ["traced"] * bool(settings.get("profile_steps"))
    size = {"rung": "-".join([*words, str(share)]), "batch_size": share * gpus}
    script = "train_parallel.py" if settings.get("tensor", 1) > 1 else "train_sharded.py"
    return rung("tensor", **configs.COATNET_5 | {"tensor": 1, "script": script} | settings | size)


def recorded_configs(gpus: int) -> Iterator[tuple[Config, int]]:
    for share in (
        configs.IMAGES_PER_RANK,
        2 * configs.IMAGES_PER_RANK,
    ):  # the pipelines have the larger share
        yield _tensor_config(gpus, share), gpus
        yield _tensor_config(gpus, share, tensor=2), gpus
        yield _tensor_config(gpus, share, **FSDP), gpus
    yield _tensor_config(gpus, tensor=2, **configs.TRACED), gpus
    if gpus >= 4:
        yield _tensor_config(gpus, tensor=2, shard="zero3", unit_blocks=11), gpus
