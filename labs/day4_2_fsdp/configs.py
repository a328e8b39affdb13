"""The runs in shards that machines with several GPUs record, at full size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course.checks.lab import SYNTHETIC, Recording
from course.config import Config, rung

SHARE = 24  # images a GPU
# CoAtNet-5, 687 million weights, at full size: 11 GB of weights, gradients and Adam's two numbers.
RECORDED: dict[str, Any] = SYNTHETIC | {
    "model": "coatnet_5_224",
    "fused": True,
    "steps": 20,
    "warmup_steps": 6,
}
TRACED = {"profile_steps": 1, "steps": 8}
DDP: dict[str, Any] = {"shard": "", "rung": "ddp"}
SMALL_GPU_GIB = 24.0  # of a GPU into which DDP's share does not fit
# Of fused SGD PyTorch has none for shards.
RESNET: dict[str, Any] = SYNTHETIC | {
    "model": "resnet50",
    "optimizer": "sgd",
    "lr": 0.01,
    "weight_decay": 5e-5,
    "steps": 60,
    "warmup_steps": 20,
}
RESNET_SHARE = 256


def sharded_config(gpus: int, share: int = SHARE, **own: Any) -> Config:
    """A training of CoAtNet-5 with so many images a GPU, labelled by how its state is shared out.

    Args:
        own: fields of the config beside zero3's.
    """
    settings = RECORDED | own
    said = {"policy": "bf16", "unit_blocks": "units", "prefetch": "ahead", "compile": "compiled"}
    words = [str(settings.get("shard", "zero3") or "ddp")]
    words += [
        f"{word}-{settings[name]}" if type(settings[name]) is int else word
        for name, word in said.items()
        if name in own
    ]
    words += ["traced"] * bool(own.get("profile_steps")) + [str(share)] * (share != SHARE)
    words += [f"{gib:.0f}gib" for name, gib in own.items() if name == "memory_gib"]
    named = {"rung": "-".join(words), "batch_size": share * gpus}
    return rung("sharded", **settings | named)


WAYS: tuple[dict[str, Any], ...] = (  # what matters most comes first
    {"shard": ""},
    {},
    {"shard": ""} | TRACED,
    TRACED,
    {"policy": True},
    {"shard": "zero2", "policy": True},
    {"shard": "zero2", "policy": True, "unit_blocks": 4},
    {"policy": True, "prefetch": 2},
    {"policy": True, "unit_blocks": 4},
    {"policy": True, "unit_blocks": 8},
    {"policy": True, "unit_blocks": 11},
    {"policy": True, "unit_blocks": 15},
    {"shard": "zero2", "policy": True, "unit_blocks": 4} | TRACED,
    {"policy": True, "unit_blocks": 0},
    {"shard": "", "memory_gib": SMALL_GPU_GIB},
    {"policy": True, "memory_gib": SMALL_GPU_GIB},
)
COMPILED: tuple[dict[str, Any], ...] = (  # each compiles for a minute or two
    {"shard": "zero2", "policy": True, "unit_blocks": 4, "compile": "default"},
    {"shard": "", "compile": "default"},
)


def resnet(gpus: int, **own: Any) -> Config:
    """ResNet-50 with 256 images a GPU, whole on each GPU, or in shards."""
    name = f"resnet50-{own.get('shard') or 'ddp'}"
    size = {"rung": name, "batch_size": RESNET_SHARE * gpus}
    return rung("sharded", **RESNET | {"shard": ""} | own | size)


def _sharded(gpus: int) -> Iterator[tuple[Config, int]]:
    yield from ((sharded_config(gpus, **way), gpus) for way in WAYS)
    yield from ((resnet(gpus, shard=shard), gpus) for shard in ("", "zero2", "zero3"))
    yield sharded_config(gpus, 2 * SHARE, policy=True), gpus
    yield from ((sharded_config(gpus, **way), gpus) for way in COMPILED)


RECORDINGS = (Recording("sharding", [sharded_config(1, shard="")], several=_sharded),)
