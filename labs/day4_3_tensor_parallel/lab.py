"""Lab 4.3: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from typing import Any

from course.checks.lab import Lab
from course.checks.lab_configs import of_ranks
from course.runs.run import Run
from labs.day4_3_tensor_parallel.configs import RECORDINGS

NO_WEIGHTS = {"save_weights": False}  # which train_parallel.py does not save
GRID = 4  # ranks: two copies of the network, each sharded over two ranks
KEPT = {"numbers that a rank keeps": "parameters"}


def _describe_schedule(run: Run) -> str:
    from labs.day4_3_tensor_parallel import schedules

    order = schedules.measured_order(run)[0]
    first = " ".join(f"{item.stage}{item.kind}{item.micro_batch}" for item in order[:8])
    return f"{len(order)} passes a rank in {run.config.pipeline}'s order; rank 0: {first} …"


PIPED: dict[str, Any] = {"rung": "pipeline", "small": NO_WEIGHTS}
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
        title="layers before an MLP learn from all its parts",
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
    "day4.stages": of_ranks(
        title="each rank keeps a part of the network, and passes on what it gives",
        todo=33,
        configs=({"rung": "large"}, {"pipeline": "gpipe"}),
        shows={"numbers that the last rank keeps": "parameters"},
        changes={"pipeline": "gpipe", "micro_batch": 2},
        **PIPED,
    ),
    "day4.schedule": of_ranks(
        title="ranks work in the order that the config names",
        todo=34,
        configs=(
            {"pipeline": "gpipe"},
            {"pipeline": "zero_bubble"},
            {"pipeline": "1f1b", "ranks": 4},
        ),
        describe=_describe_schedule,
        changes={"pipeline": "zero_bubble", "micro_batch": 2},
        **PIPED,
    ),
}

LAB = Lab(
    number="4.3",
    title="tensor and pipeline parallelism",
    minutes=90,
    checks=CHECKS,
    recordings=RECORDINGS,
    jobs="16, most of 2 processes, two of 4",
    prepare="nothing",
    stuck="a tensor-parallel group gets the same images; the last bias is added once; "
    "backward has sums too",
)
