"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from typing import Any

from course.lab import Exercise, Fact, Function, FunctionCheck, Lab, facts
from labs.fsdp.mechanism import sharding
from labs.two_dimensions.meshes import RECORDINGS

GRID = {"shard": "zero3", "tensor": 2, "ranks": 4}  # 2 × 2
# The run of a check; mistakes show in its small runs.
SHORT = {"steps": 4, "warmup_steps": 1, "val_steps": 0, "epochs": 1, "lr_warmup": 0}
MESH = (
    Fact("number of sequences per step", facts.entry("share"),
         "ranks that share a copy get the same sequences, so divide the batch by the number of "
         'copies, mesh["data"].size()'),
    Fact("order of the sequences", facts.entry("taken"),
         "get_local_rank() in mesh['data'] is the number of a rank's copy; neighbours share one: "
         "'data' is the first dimension, 'tensor' the second", "epoch"),
)  # fmt: skip
SHARDS = (
    Fact("list of the numbers of weights in fully_shard's calls", sharding("weights"),
         "each block of net.blocks first, then the network, which takes the rest"),
    Fact("number of fully_shard's calls", lambda rank: len(rank.notes.shard_calls),
         "one for each block, and one for the network"),
    Fact("mesh of fully_shard", sharding("mesh"),
         'pass mesh=mesh["data"]: the ranks that keep the same part of the network'),
)  # fmt: skip
STYLES = (
    "qkv and mlp_in compute columns (ColwiseParallel), out and mlp_out add up rows "
    '(RowwiseParallel); all over mesh["tensor"], before fully_shard'
)
PARTS = (
    Fact("order of the styles in a pair of layers",
         lambda rank: "another" if "ropagation failed" in rank.error else "columns, then rows",
         STYLES),
    Fact("", lambda rank: rank.evidence.spread.placements, STYLES),
    Fact("group of the all-reduces in the forward pass", facts.kinds("forward_groups"),
         'divide layers among the ranks of mesh["tensor"]'),
)  # fmt: skip


def _exercise(title: str, **options: Any) -> Exercise:
    """Return a check of ranks on a mesh; the speed does not count."""
    defaults = {"rung": "gpt", "against": "gpt", "changes": {"shard": "zero3", "tensor": 2}}
    defaults |= {"settings": SHORT}
    defaults |= {"small": {"vocabulary": 10240}}  # no less, or the text has more
    return Exercise(title=title, gpus=4, timed=False, **defaults | options)


def _choose_plan() -> FunctionCheck:
    from labs.two_dimensions import plans, verify

    return FunctionCheck(plans.choose_plan, verify.check_choices, verify.check_recordings)


LAB = Lab(
    title="two dimensions at work",
    minutes=60,
    exercises={
        "mesh": _exercise(
            "neighbours share a copy of the network, and get the same sequences",
            configs=({"ranks": 2}, {"shard": "zero3", "ranks": 1}, {"shard": "zero3"}, GRID),
            shows={"sequences of each rank": "share"},
            causes=MESH,
        ),
        "shard_plan": _exercise(
            "the copies divide what each rank stores",
            configs=({"ranks": 1}, {"shard": "zero3", "ranks": 2}, GRID),
            shows={"weights by placement": "spread.placements"},
            causes=SHARDS,
            facts=SHARDS,
        ),
        "tensor_plan": _exercise(
            "the ranks of a tensor-parallel group divide each block",
            configs=({"shard": "zero3", "ranks": 2}, GRID),
            shows={"weights by placement": "spread.placements"},
            causes=PARTS,
            facts=PARTS,
        ),
    },
    functions={"two_dimensions.plan": Function("a plan for several GPUs", _choose_plan)},
    recordings=RECORDINGS,
    jobs="8, of 1 or 4 processes",
    prepare="nothing",
    stuck="divide layers before you shard them; a copy is a row of the mesh",
)
