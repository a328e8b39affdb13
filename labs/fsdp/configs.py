"""Sharded training runs at full size, which machines with several GPUs record."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course import Config, rung
from course.lab import SYNTHETIC, Recording, configs

SMALL_GPU = {"memory_gib": 24.0}  # DDP does not fit
# Without `fused`, which SGD does not have for shards.
RESNET: dict[str, Any] = SYNTHETIC | {
    "model": "resnet50",
    "optimizer": "sgd",
    "lr": 0.01,
    "weight_decay": 5e-5,
    "steps": 60,
    "warmup_steps": 20,
}


def sharded_config(gpus: int, share: int = configs.IMAGES_PER_RANK, **settings: Any) -> Config:
    """Return the config of CoAtNet-5 on several GPUs, with a label that names the strategy.

    Args:
        share: images per GPU.
        settings: further fields of the Config.
    """
    words = [settings.get("shard", "zero3") or "ddp"]
    for field, word in (("gather_bf16", "bf16"), ("unit_blocks", "units"), ("prefetch", "ahead")):
        if field in settings:
            number = settings[field]
            words.append(word if number is True else f"{word}-{number}")
    words += ["accumulated"] * ("micro_batch" in settings)
    words += ["compiled"] * bool(settings.get("compile"))
    words += ["traced"] * bool(settings.get("profile_steps"))
    words += [str(share)] * (share != configs.IMAGES_PER_RANK)
    words += [f"{settings['memory_gib']:.0f}gib"] if "memory_gib" in settings else []
    size = {"rung": "-".join(words), "batch_size": share * gpus}
    return rung("sharded", **configs.COATNET_5 | settings | size)


STRATEGIES: tuple[dict[str, Any], ...] = (  # the most important first
    {"shard": ""},
    {},
    {"shard": ""} | configs.TRACED,
    configs.TRACED,
    {"gather_bf16": True},
    {"shard": "zero2", "gather_bf16": True},
    {"shard": "zero2", "gather_bf16": True, "unit_blocks": 4},
    {"gather_bf16": True, "prefetch": 2},
    {"gather_bf16": True, "unit_blocks": 4},
    {"gather_bf16": True, "unit_blocks": 8},
    {"gather_bf16": True, "unit_blocks": 11},
    {"gather_bf16": True, "unit_blocks": 15},
    {"shard": "zero2", "gather_bf16": True, "unit_blocks": 4} | configs.TRACED,
    {"gather_bf16": True, "unit_blocks": 0},
    {"shard": "", **SMALL_GPU},
    {"gather_bf16": True, **SMALL_GPU},
)
COMPILED: tuple[dict[str, Any], ...] = (  # compiling takes a minute or two
    {"shard": "zero2", "gather_bf16": True, "unit_blocks": 4, "compile": "default"},
    {"shard": "", "compile": "default"},
)


def _resnet_config(gpus: int, shard: str) -> Config:
    """Return the config of ResNet-50 with 256 images per GPU."""
    size = {"rung": f"resnet50-{shard or 'ddp'}", "batch_size": 256 * gpus}
    script = "train_sharded.py" if shard else "train.py"
    return rung("sharded", **RESNET | {"shard": shard, "script": script} | size)


def _sharded_configs(gpus: int) -> Iterator[tuple[Config, int]]:
    yield from ((sharded_config(gpus, **strategy), gpus) for strategy in STRATEGIES)
    yield from ((_resnet_config(gpus, shard), gpus) for shard in ("", "zero2", "zero3"))
    share = 2 * configs.IMAGES_PER_RANK
    yield sharded_config(gpus, share, gather_bf16=True), gpus
    accumulated = {"unit_blocks": 11, "micro_batch": configs.IMAGES_PER_RANK}
    yield sharded_config(gpus, share, gather_bf16=True, **accumulated), gpus
    yield from ((sharded_config(gpus, **strategy), gpus) for strategy in COMPILED)


def _on_two_hosts(gpus: int) -> Iterator[tuple[Config, int]]:
    """Yield a large network on two simulated hosts: sharded, sharded per host, replicated."""
    for strategy in (
        {"gather_bf16": True},
        {"shard": "hybrid", "gather_bf16": True},
        {"shard": ""},
    ):
        yield from ((sharded_config(gpus, **strategy, hosts=hosts), gpus) for hosts in (2, 1))


RECORDINGS = (
    Recording("sharding", [sharded_config(1, shard="")], several=_sharded_configs),
    Recording("network", several=_on_two_hosts),
)
