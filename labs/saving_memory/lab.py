"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from course import Config, rung
from course.lab import (
    SYNTHETIC,
    Exercise,
    Fact,
    Function,
    FunctionCheck,
    Lab,
    Recording,
    configs,
    facts,
)
from labs.saving_memory import mechanism

# A transformer has no BatchNorm, so that micro-batches have exactly the losses of the full batch.
# Ten images make micro-batches of three; the last has one image.
WHOLE = configs.SMALL_VIT_SETTINGS | {"batch_size": 10}


# CoAtNet-3, 167 million weights, at full size on one GPU.
RECORDED: dict[str, Any] = SYNTHETIC | {
    "model": "coatnet_3_224",
    "fused": True,
    "batch_size": 128,
    "steps": 24,
    "warmup_steps": 8,
}
CHECKPOINTING = ("every", "second", "selective")


def memory_config(batch_size: int = 128, **settings: Any) -> Config:
    """Return the config of CoAtNet-3 with a memory strategy, which its label names."""
    words = [f"{field}-{value}" for field, value in settings.items()] or ["plain"]
    short = {"steps": 10, "warmup_steps": 4} if settings.get("offload") else {}
    name = "-".join([*words, str(batch_size)])
    return rung("large", **RECORDED | short | settings | {"batch_size": batch_size, "rung": name})


def _memory_configs() -> Iterator[Config]:
    """Yield all recorded strategies, with all memory and on a GPU of 40 GiB."""
    yield memory_config()
    yield from (memory_config(micro_batch=images) for images in (64, 32, 16, 8, 4))
    yield from (memory_config(checkpointing=blocks) for blocks in CHECKPOINTING)
    yield memory_config(offload=True)
    yield from (memory_config(checkpointing="every", micro_batch=images) for images in (64, 32, 16))
    yield memory_config(checkpointing="selective", micro_batch=64)
    yield memory_config(checkpointing="every", offload=True)
    yield memory_config(96)
    limit: dict[str, Any] = {"memory_gib": 40}
    yield memory_config(**limit)
    yield memory_config(112, **limit)  # as many images as fit in one pass
    yield memory_config(256, micro_batch=64, **limit)
    # Up to 216 images, each tensor has fewer than 2^31 numbers; above, kernels count in 64 bits.
    yield from (memory_config(216, checkpointing=blocks, **limit) for blocks in CHECKPOINTING)
    yield memory_config(232, checkpointing="every", **limit)


WEIGHTING = (
    mechanism.FACTS[0],
    Fact("training", facts.progress,
         "pair images with their labels, and weight a loss by its share of the images in this "
         "batch, `len(targets) / len(labels)`: the last batch may be smaller",
         "step", facts.ROUGHLY),
)  # fmt: skip
NO_SYNC = (
    Fact("module whose no_sync is called",
         lambda rank: "the network" if "no_sync" in rank.error else "DDP around it",
         "one process has no DDP, so enter `model.no_sync(…)` only if isinstance(model, DDP)"),
    Fact("number of all-reduces per update", facts.all_reduces("backward_collectives"),
         "enter `model.no_sync(…)` around forward and backward of each micro-batch but the last"),
    Fact("number of different gradients on the ranks",
         facts.if_complete(
             lambda rank: len({f"{peer.notes.gradients['0']:.4g}" for peer in rank.peers})),
         "the last micro-batch has no all-reduce: `model.no_sync(…)` is for all before it"),
)  # fmt: skip
EXERCISES = {
    "accumulation": Exercise(
        title="a batch in parts trains like the full batch",
        configs=(
            {"rung": "large"},
            {"micro_batch": 3},
            {"micro_batch": 2, "batch_size": 14, "ranks": 2},
            # The last batch has 8 images, which make fewer micro-batches.
            {"micro_batch": 7, "batch_size": 20, "drop_last": False},
        ),
        small=configs.SMALL_TRANSFORMER,
        rung="accumulated",
        against="large",
        shows={"images and factor of the loss of each micro-batch": "passes"},
        changes={"micro_batch": 3},
        settings=WHOLE,
        timed=False,
        causes=WEIGHTING,
    ),
    "no_sync": Exercise(
        title="one all-reduce per update",
        configs=(
            {"rung": "large"},
            {"ranks": 1, "micro_batch": 3},
            {"micro_batch": 3},
            {"micro_batch": 2, "batch_size": 12},
        ),
        small=configs.SMALL_TRANSFORMER,
        rung="accumulated",
        against="large",
        shows={
            "images and factor of the loss of each micro-batch": "passes",
            "collectives in backward": "backward_collectives",
        },
        changes={"micro_batch": 3},
        settings=WHOLE,
        gpus=2,
        timed=False,
        causes=NO_SYNC,
    ),
    "recomputation": Exercise(
        title="blocks recompute their activations instead of keeping them",
        configs=(
            {"rung": "large"},
            *({"checkpointing": how} for how in CHECKPOINTING),
            # Its blocks have other names.
            {"checkpointing": "every", "model": "resnet18", "ranks": 2},
        ),
        small=configs.SMALL_TRANSFORMER,
        rung="checkpointed",
        against="large",
        shows={"GiB kept for backward": "kept_gib", "recomputed in backward": "recomputed"},
        settings=WHOLE,
        timed=False,
    ),
    "offloading": Exercise(
        title="activations wait in host memory (optional)",
        configs=(
            {"rung": "large"},
            {"rung": "offloaded"},
            {"rung": "offloaded", "ranks": 2},
            {"rung": "offloaded", "checkpointing": "every"},
        ),
        calls=("course.checks.dry_runs:offloading",),
        small=configs.SMALL_TRANSFORMER,
        rung="offloaded",
        against="large",
        shows={"GiB kept on the device for backward": "kept_gib"},
        settings=WHOLE,
        timed=False,
    ),
}


def _choose_settings() -> FunctionCheck:
    from labs.saving_memory import verify

    return FunctionCheck(verify.choose_settings, verify.check_choices, verify.check_speed)


LAB = Lab(
    title="saving memory by checkpointing and offloading",
    minutes=80,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    functions={"saving_memory.settings": Function("settings for a memory limit", _choose_settings)},
    recordings=(Recording("memory", [*_memory_configs()]),),
    jobs="5, of 6 runs, one of 2 processes",
    prepare="nothing",
    stuck="the last micro-batch is smaller; blocks are checkpointed before DDP wraps the network",
)
