"""Lab 4.3: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import Lab, Recording
from course.checks.lab_configs import of_ranks
from labs.day4_3_tensor_parallel import configs

NO_WEIGHTS = {"save_weights": False}  # which train_parallel.py does not save
GRID = 4  # ranks: two copies of the network, each sharded over two ranks
STORED = {"numbers that a rank stores": "parameters"}
CHECKS = {
    "day4.tensor_groups": of_ranks(
        title="ranks that share a network get the same images",
        todo=29,
        configs=({"rung": "large"}, {}, {"tensor": 1}),
        shows={"images of each rank": "share"},
        rung="tensor",
        small=NO_WEIGHTS,
        gpus=GRID,
    ),
    "day4.columns": of_ranks(
        title="each rank stores some hidden channels of every MLP",
        todo=30,
        configs=({"rung": "large"}, {}, {"ranks": 4}),
        shows=STORED | {"collectives in forward": "forward_collectives"},
        rung="tensor",
        # Until TODO 31, gradients depend on which rank keeps the bias; losses do not.
        small=NO_WEIGHTS | {"lr": 0.0},
    ),
    "day4.entry": of_ranks(
        title="layers before an MLP learn from all of its parts",
        todo=31,
        configs=({"rung": "large"}, {}, {"ranks": 4}),
        shows={
            "collectives in forward": "forward_collectives",
            "in backward": "backward_collectives",
        },
        rung="tensor",
        small=NO_WEIGHTS,
    ),
    "day4.grid": of_ranks(
        title="the copies divide what a rank stores",
        todo=32,
        configs=({"shard": ""}, {"shard": "zero3"}),
        shows=STORED | {"shape of the mesh": "spread.mesh", "weights": "spread.placements"},
        rung="tensor",
        small=NO_WEIGHTS,
        gpus=GRID,
        changes={"shard": "zero3"},
    ),
}

LAB = Lab(
    number="4.3",
    title="tensor parallelism",
    minutes=60,
    checks=CHECKS,
    recordings=(Recording("parallel", several=configs.recorded_configs),),
    jobs="6, of 2 or 4 processes",
    prepare="nothing",
    stuck="a tensor-parallel group gets the same images; the last bias is added once; "
    "backward has sums too",
)
