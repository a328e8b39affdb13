"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course import Run
from course.lab import (
    NOT_APPLICABLE,
    Fact,
    Function,
    FunctionCheck,
    Lab,
    NotApplicable,
    Rank,
    configs,
    facts,
)
from labs.fsdp import mechanism
from labs.fsdp.configs import RECORDINGS


def _describe_checkpoint(run: Run) -> str:
    parts = sorted((run.folder / "checkpoint").glob("*.distcp"))
    size = sum(path.stat().st_size for path in parts)
    return f"{size / 2**20:.1f} MiB in {len(parts)} parts, one per rank: weights and AdamW's state"


def _order(rank: Rank) -> str:
    calls = mechanism.sharding("of")(rank) or "none"
    is_complete = calls != "units" or not rank.error or "single root" in rank.error
    if not is_complete:  # the script failed before the rest
        raise facts.Missing
    return calls


def _reshards(rank: Rank) -> dict[str, str]:
    calls = rank.notes.shard_calls
    return {f"reshard_after_forward of {call.of}": str(call.reshard) for call in calls}


SHARDING = (  # also of TODO mesh_2d
    Fact("order of fully_shard's calls", _order,
         "with cfg.shard and several ranks or copies, else not at all, call `fully_shard(…)` on "
         "each unit, then on the network, which takes the remaining weights"),
    Fact("number of fully_shard's calls",
         facts.if_complete(lambda rank: len(rank.notes.shard_calls)),
         "one for each unit of `units`, which may have several blocks, and one for the network"),
    Fact("DDP around a sharded network",
         lambda rank: "present" if "propagation failed" in rank.error else NOT_APPLICABLE,
         "only without cfg.shard: `elif run.world_size > 1:`"),
    Fact("mesh of fully_shard", mechanism.sharding("mesh"),
         "pass mesh= in each call of `fully_shard(…)`, of the ranks that have the same weights"),
    Fact("", _reshards,
         "only zero2 keeps the weights of units gathered; leave it out for the network itself"),
)  # fmt: skip
CLIPPING = (
    Fact("training", facts.progress,
         "if cfg.clip, clip the norm of all weights' gradients together, after the last "
         "micro-batch and before the update, `nn.utils.clip_grad_norm_(…)`", "step", facts.ROUGHLY),
)  # fmt: skip


def _content(rank: Rank) -> str | NotApplicable:
    counts, shapes = rank.files.checkpoint, rank.notes.shapes
    if NOT_APPLICABLE in (counts, shapes):
        return "none" if rank.config.save_shards and not rank.error else NOT_APPLICABLE
    tensors = sum(count for name, count in counts.items() if "tensors" in name)
    return "weights and the optimizer's state" if tensors > len(shapes) else "weights only"


CHECKPOINTED = (
    Fact("content of the checkpoint", _content,
         "with cfg.save_shards each run saves, also one of one rank, and all of "
         "`training_state(…)`: without the optimizer's state, AdamW starts again"),
    Fact("", lambda rank: rank.notes.began if rank.config.resume else NOT_APPLICABLE,
         "pass to `state_dict.set_state_dict(…)` all that `dcp.load(…)` read: weights and the "
         "optimizer's state"),
)  # fmt: skip
REDUCED = Fact(
    "number of reduce-scatters per update",
    facts.if_complete(
        lambda rank: rank.evidence.backward_collectives.get("_reduce_scatter_base", 0)
    ),
    "call `model.set_requires_gradient_sync(…)` before each micro-batch: True for the last, "
    "False for the others",
)
GATHERS = {"all-gathers between computations": "gathers"}
EXERCISES = {
    "fully_shard": configs.of_ranks(
        title="each rank keeps its shards, and gathers unit by unit",
        configs=(
            {"rung": "large", "bucket_mb": 1.0},
            {},
            {"ranks": 1},
            {"shard": "hybrid", "ranks": 4, "unit_blocks": 2},
            {"rung": "large", "ranks": 1},
            {"shard": "zero2", "unit_blocks": 0},
        ),
        shows={
            "weights by placement": "spread.placements",
            "bytes per rank": "spread.bytes",
            **GATHERS,
        },
        causes=SHARDING,
    ),
    "reshard": configs.of_ranks(
        title="weights are gathered once for both passes (optional)",
        configs=({"shard": "zero3"}, {"shard": "zero2"}, {"shard": "hybrid", "ranks": 4}),
        shows=GATHERS,
        changes={"shard": "zero2"},
        causes=SHARDING,
    ),
    "mixed_precision_policy": configs.of_ranks(
        title="weights are gathered in bf16, and stored in fp32",
        configs=({"gather_bf16": False}, {}),
        shows={"gathered": "gathered_types", "reduced": "reduced_types"},
        changes={"gather_bf16": True, "precision": "bf16"},
    ),
    "shard_accumulation": configs.of_ranks(
        title="sharded gradients are reduced once per update",
        configs=(
            {},
            {"micro_batch": 1},
            {"micro_batch": 1, "shard": "hybrid", "ranks": 4},
            {"micro_batch": 2, "shard": "zero2", "ranks": 1},
            {"micro_batch": 2, "rung": "large"},
        ),
        shows={"collectives in backward": "backward_collectives"},
        changes={"micro_batch": 2},
        causes=(REDUCED,),
        facts=(REDUCED,),
    ),
    "prefetch": configs.of_ranks(
        title="the next units are gathered while one computes (optional)",
        configs=({"prefetch": 0}, {"prefetch": 1, "unit_blocks": 2}, {"prefetch": 2}),
        shows=GATHERS,
        changes={"prefetch": 2},
    ),
    "clip_grad_norm": configs.of_ranks(
        title="gradients are clipped by their norm over all ranks (optional)",
        configs=(
            {"clip": 0.0},
            {"clip": 0.5},
            {"clip": 100.0},
            {"clip": 0.5, "rung": "large", "micro_batch": 2},
            {"clip": 0.25, "ranks": 1},
        ),
        causes=CLIPPING,
        shows={"norm of a rank's gradients at the first update": "gradient_norm"},
        changes={"clip": 1.0},
    ),
    "full_state_dict": configs.of_ranks(
        title="only rank 0 gets the full state dict (optional)",
        # Only a ResNet has buffers: BatchNorm's statistics.
        configs=({"rung": "large"}, {}, {"ranks": 1, "model": "resnet18"}),
        small={"save_weights": True},
        shows={"most bytes of full weights at once on the last rank": "held_to_save"},
        changes={"save_weights": True},
    ),
    "sharded_checkpoint": configs.of_ranks(
        title="each rank writes its part, and any number of ranks can resume",
        configs=(
            {"save_shards": False},
            {"name": "saved", "epochs": 1, "warmup_steps": 2},
            {"name": "resumed", "resume": "saved"},
            {"name": "alone", "resume": "resumed", "ranks": 1, "epochs": 3},
        ),
        small={"optimizer": "adamw", "lr": 1e-3},
        causes=CHECKPOINTED,
        describe=_describe_checkpoint,
        changes={"save_shards": True},
    ),
    "compile_blocks": configs.of_ranks(
        title="each block is compiled separately (optional)",
        configs=(
            {"compile": ""},
            {},
            {"compile": "max-autotune-no-cudagraphs", "model": "resnet18", "unit_blocks": 2},
            {"ranks": 1},
        ),
        shows={"graphs after each epoch": "compiled.graphs", "breaks": "compiled.breaks"},
        changes={"compile": "default"},
    ),
}


def _sharded_linear() -> FunctionCheck:
    from labs.fsdp import by_hand, verify

    return FunctionCheck(by_hand.sharded_linear, verify.check_gradients, verify.check_memory)


LAB = Lab(
    title="FSDP, a network sharded over several GPUs",
    minutes=100,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    functions={"fsdp.layer": Function("a layer, sharded by hand", _sharded_linear)},
    recordings=RECORDINGS,
    jobs="13, most of 2 processes, three of 4",
    prepare="nothing",
    stuck="create the optimizer after sharding; all ranks gather, and one writes",
)
