"""Checks of tensor parallelism: the images, weights and sums of the ranks of one network."""

from __future__ import annotations

from course.checks.rank_checks import evidence_of_ranks, of_ranks
from course.runs.run import Run

NO_WEIGHTS = {"save_weights": False}  # which train_parallel.py does not save
GRID = 4  # ranks: two copies of the network, each sharded over two ranks


def _sums(run: Run, phase: str) -> int:
    return run.record.evidence[f"{phase}_collectives"]["allreduce"]


def _describe_groups(run: Run) -> str:
    share, copies = evidence_of_ranks(run)[0]["share"], run.record.gpus // run.config.tensor
    return f"{run.config.tensor} ranks get the same {share} images, each of {copies} copies others"


def _describe_columns(run: Run) -> str:
    kept = evidence_of_ranks(run)[0]["parameters"]
    return f"rank 0 keeps {kept:,} numbers; {_sums(run, 'forward')} all-reduces in forward"


def _describe_entry(run: Run) -> str:
    return f"{_sums(run, 'forward')} all-reduces in forward, {_sums(run, 'backward')} in backward"


def _describe_grid(run: Run) -> str:
    spread = evidence_of_ranks(run)[0]["spread"]
    kept, copies = spread["bytes"]["weights"] / 4, spread["mesh"][0]
    return f"rank 0 keeps {kept:,.0f} numbers, sharded over {copies} copies of the network"


CHECKS = {
    "day4.tensor_groups": of_ranks(
        title="ranks of one network see the same images",
        todo=29,
        configs=({"rung": "large"}, {}, {"tensor": 1}),
        describe=_describe_groups,
        word="copies",
        rung="tensor",
        small=NO_WEIGHTS,
        gpus=GRID,
    ),
    "day4.columns": of_ranks(
        title="each rank keeps some hidden channels of every MLP",
        todo=30,
        configs=({"rung": "large"}, {}, {"ranks": 4}),
        describe=_describe_columns,
        word="TensorParallelMlp",
        rung="tensor",
        # Until TODO 31, gradients depend on which rank keeps the bias; losses do not.
        small=NO_WEIGHTS | {"lr": 0.0},
    ),
    "day4.entry": of_ranks(
        title="what lies before an MLP learns from all of it",
        todo=31,
        configs=({"rung": "large"}, {}, {"ranks": 4}),
        describe=_describe_entry,
        word="Entry",
        rung="tensor",
        small=NO_WEIGHTS,
    ),
    "day4.grid": of_ranks(
        title="copies share out what a rank keeps once more",
        todo=32,
        configs=({"shard": ""}, {"shard": "zero3"}),
        describe=_describe_grid,
        word="fully_shard",
        rung="tensor",
        small=NO_WEIGHTS,
        gpus=GRID,
        changes={"shard": "zero3"},
    ),
}
