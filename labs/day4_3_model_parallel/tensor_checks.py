"""How it is seen that ranks share out the MLPs of one network: who sees, keeps, adds up what."""

from __future__ import annotations

from course.checks.rank_checks import of_ranks, seen_by_ranks
from course.runs.run import Run

NO_WEIGHTS = {"save_weights": False}  # which train_parallel.py does not save
GRID = 4  # ranks of two copies, each shared out over two


def _sums(run: Run, phase: str) -> int:
    return run.record.evidence[f"{phase}_collectives"]["allreduce"]


def _groups_seen(run: Run) -> str:
    share, copies = seen_by_ranks(run)[0]["share"], run.record.gpus // run.config.tensor
    return f"{run.config.tensor} ranks saw the same {share} images, each of {copies} copies others"


def _columns_seen(run: Run) -> str:
    kept = seen_by_ranks(run)[0]["parameters"]
    return f"rank 0 keeps {kept:,} numbers; {_sums(run, 'forward')} all-reduces in forward"


def _entry_seen(run: Run) -> str:
    return f"{_sums(run, 'forward')} all-reduces in forward, {_sums(run, 'backward')} in backward"


def _grid_seen(run: Run) -> str:
    spread = seen_by_ranks(run)[0]["spread"]
    kept, copies = spread["bytes"]["weights"] / 4, spread["mesh"][0]
    return f"rank 0 keeps {kept:,.0f} numbers, sharded over {copies} copies of the network"


CHECKS = {
    "day4.tensor_groups": of_ranks(
        title="ranks of one network see the same images",
        todo=29,
        configs=({"rung": "large"}, {}, {"tensor": 1}),
        seen=_groups_seen,
        word="copies",
        rung="tensor",
        small=NO_WEIGHTS,
        gpus=GRID,
    ),
    "day4.columns": of_ranks(
        title="each rank keeps some hidden channels of every MLP",
        todo=30,
        configs=({"rung": "large"}, {}, {"ranks": 4}),
        seen=_columns_seen,
        word="TensorParallelMlp",
        rung="tensor",
        # Until TODO 31, gradients depend on which rank keeps the bias; losses do not.
        small=NO_WEIGHTS | {"lr": 0.0},
    ),
    "day4.entry": of_ranks(
        title="what lies before an MLP learns from all of it",
        todo=31,
        configs=({"rung": "large"}, {}, {"ranks": 4}),
        seen=_entry_seen,
        word="Entry",
        rung="tensor",
        small=NO_WEIGHTS,
    ),
    "day4.grid": of_ranks(
        title="copies share out what a rank keeps once more",
        todo=32,
        configs=({"shard": ""}, {"shard": "zero3"}),
        seen=_grid_seen,
        word="fully_shard",
        rung="tensor",
        small=NO_WEIGHTS,
        gpus=GRID,
        shard="zero3",
    ),
}
