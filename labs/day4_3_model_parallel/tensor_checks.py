"""Checks of tensor parallelism: the images, weights and sums of the ranks of one network."""

from __future__ import annotations

from course.checks.lab_configs import of_ranks

NO_WEIGHTS = {"save_weights": False}  # which train_parallel.py does not save
GRID = 4  # ranks: two copies of the network, each sharded over two ranks


KEPT = {"numbers that a rank keeps": "parameters"}

CHECKS = {
    "day4.tensor_groups": of_ranks(
        title="ranks of one network see the same images",
        todo=29,
        configs=({"rung": "large"}, {}, {"tensor": 1}),
        shows={"images of each rank": "share"},
        rung="tensor",
        small=NO_WEIGHTS,
        gpus=GRID,
    ),
    "day4.columns": of_ranks(
        title="each rank keeps some hidden channels of every MLP",
        todo=30,
        configs=({"rung": "large"}, {}, {"ranks": 4}),
        shows=KEPT | {"collectives in forward": "forward_collectives"},
        rung="tensor",
        # Until TODO 31, gradients depend on which rank keeps the bias; losses do not.
        small=NO_WEIGHTS | {"lr": 0.0},
    ),
    "day4.entry": of_ranks(
        title="what lies before an MLP learns from all of it",
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
        title="copies share out what a rank keeps once more",
        todo=32,
        configs=({"shard": ""}, {"shard": "zero3"}),
        shows=KEPT | {"shape of the mesh": "spread.mesh", "weights": "spread.placements"},
        rung="tensor",
        small=NO_WEIGHTS,
        gpus=GRID,
        changes={"shard": "zero3"},
    ),
}
