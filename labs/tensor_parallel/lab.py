"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import (
    NOT_APPLICABLE,
    Fact,
    Function,
    FunctionCheck,
    Lab,
    NotApplicable,
    Rank,
    Recording,
    configs,
    facts,
)
from labs.fsdp.lab import SHARDING
from labs.tensor_parallel.configs import recorded_configs

GROUP = "pass group= to the collective: it must add up these ranks' parts, and no others"
GRID = 4  # ranks: two copies of the network, each sharded over two ranks


def _mlp_weights(rank: Rank) -> dict[str, str] | NotApplicable:
    """Return the shape of each MLP's weights, and the number of ranks that keep it."""
    kept: dict[str, list[str]] = {}
    for peer in rank.peers:
        shapes = peer.notes.shapes
        for name, shape in () if shapes is NOT_APPLICABLE else shapes.items():
            kept.setdefault(name, []).append(str(shape))
    words = {name: f"{' and '.join(sorted({*x}))} on {len(x)} ranks" for name, x in kept.items()}
    return {name: text for name, text in words.items() if "mlp" in name} or NOT_APPLICABLE


AVERAGED = Fact("ranks of DDP's group", lambda rank: rank.notes.ddp_ranks,
    "DDP averages gradients over the ranks with the same weights, `copies.get_group(…)`: "
    "`DDP(net, process_group=group)`")  # fmt: skip
GROUPS = (
    Fact("number of a rank's copy",
         lambda rank: "too large" if "in the interval" in rank.error else "below their number",
         "copies.get_local_rank() is the number; all stages of a pipeline are in copy 0"),
    Fact("number of images per step", facts.entry("share"),
         "the batch is divided by the number of copies of the network, copies.size()"),
    Fact("order of the images", facts.entry("taken"),
         "copies.get_local_rank() is the number of a rank's copy: ranks that share a copy need the "
         "same images, and other copies different ones", "epoch"),
    AVERAGED,
)  # fmt: skip
COPIED = Fact("parts that two copies keep in the same place",
    lambda rank: "different ones" if "expects same model" in rank.error else "the same ones",
    "number the ranks that share a copy by `ranks.get_local_rank()`: get_rank() counts all, so "
    "that only one copy keeps the bias")  # fmt: skip
COLUMNS = Fact("", _mlp_weights,
    "each rank of tensor_group keeps a part of fc1's rows (dim 0, also of its bias) and of fc2's "
    "columns (dim 1); only one rank keeps fc2.bias, because results are added up")  # fmt: skip


def _sums(phase: str, hint: str) -> tuple[Fact, ...]:
    return (
        Fact(f"number of all-reduces in the {phase} pass",
             facts.all_reduces(f"{phase}_collectives"), hint),
        Fact(f"group of the all-reduces in the {phase} pass",
             facts.kinds(f"{phase}_groups"), GROUP),
        Fact("training", facts.progress,
             f"{hint}; it returns this sum, not a mean or one of the parts", "step", facts.ROUGHLY),
    )  # fmt: skip


EXERCISES = {
    "device_mesh": configs.of_ranks(
        title="ranks that share a network get the same images",
        configs=(
            {"rung": "large"},
            {},
            {"tensor": 1},
            {"rung": "large", "ranks": 1},
            {"rung": "pipeline", "ranks": 2},
        ),
        shows={"images of each rank": "share"},
        rung="tensor",
        gpus=GRID,
        causes=GROUPS,
    ),
    "column_parallel": configs.of_ranks(
        title="each rank stores some hidden channels of every MLP",
        configs=(
            {"rung": "large"},
            {"tensor": 4, "ranks": 4},
            {"ranks": 4},
            {"model": "resnet18"},  # without MLPs, like CoAtNet's first blocks
            # Five does not divide the number of channels.
            {"tensor": 5, "ranks": 5, "batch_size": 6},
        ),
        shows={"weights per rank": "parameters", "collectives in forward": "forward_collectives"},
        rung="tensor",
        # Until TODO input_gradient, gradients depend on which rank keeps the bias; losses do not.
        small={"lr": 0.0},
        causes=(
            COPIED,
            COLUMNS,
            *_sums("forward", "for each MLP, Exit.forward sums the results over the group, once"),
        ),
    ),
    "input_gradient": configs.of_ranks(
        title="layers before an MLP learn from all of its parts",
        configs=({"rung": "large"}, {}, {"ranks": 4}),
        shows={
            "collectives in forward": "forward_collectives",
            "in backward": "backward_collectives",
        },
        rung="tensor",
        causes=_sums(
            "backward", "for each MLP, Entry.backward sums the parts of the gradient over ctx.group"
        ),
    ),
    "mesh_2d": configs.of_ranks(
        title="the copies divide what a rank stores",
        configs=(
            {"shard": ""},
            {"shard": "zero3", "unit_blocks": 3},
            {"shard": "zero3", "ranks": 1, "tensor": 1},
            {"shard": "zero3", "unit_blocks": 0},
        ),
        shows={"weights by placement": "spread.placements", "bytes per rank": "spread.bytes"},
        rung="tensor",
        gpus=GRID,
        changes={"shard": "zero3"},
        facts=SHARDING,
        causes=(*SHARDING, AVERAGED),
    ),
}


def _exchange() -> FunctionCheck:
    from labs.tensor_parallel import strips

    return FunctionCheck(strips.exchange, strips.check_rows, strips.check_messages)


LAB = Lab(
    title="tensor parallelism",
    minutes=80,
    exercises=EXERCISES,
    functions={"tensor_parallel.halo": Function("an exchange of border rows", _exchange)},
    recordings=(Recording("parallel", several=recorded_configs),),
    jobs="5, of 2 or 4 processes",
    prepare="nothing",
    stuck="a tensor-parallel group gets the same images; the last bias is added once; "
    "backward has sums too",
)
