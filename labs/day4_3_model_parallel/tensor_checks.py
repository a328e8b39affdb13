"""How it is seen that ranks share out the MLPs of one network: who sees, keeps, adds up what."""

from __future__ import annotations

from functools import lru_cache

from course.runs.run import Run
from labs.day4_2_fsdp.rank_checks import of_ranks, seen_by_ranks

NO_WEIGHTS = {"save_weights": False}  # which train_parallel.py does not save
GRID = 4  # ranks of two copies, each shared out over two


@lru_cache(maxsize=8)
def _mlps(model: str, classes: int, image_px: int) -> tuple[int, int, int, int]:
    """Of a network: its MLPs; their numbers that are cut, and those added once; all numbers."""
    import torch

    from course.training import models

    with torch.device("meta"):
        net = models.create(model, classes, image_px)
    mlps = [block.mlp for block in models.blocks(net) if hasattr(block, "mlp")]
    cut = sum(each.numel() for mlp in mlps for each in (*mlp.fc1.parameters(), mlp.fc2.weight))
    once = sum(mlp.fc2.bias.numel() for mlp in mlps)
    return len(mlps), cut, once, models.parameter_count(net)


def _network(run: Run) -> tuple[int, int, int, int]:
    cfg = run.config
    return _mlps(cfg.model, run.record.evidence["classes"] or 1, cfg.image_px)


def _mates_seen(run: Run) -> str:
    share, copies = seen_by_ranks(run)[0]["share"], run.record.gpus // run.config.tensor
    return f"{run.config.tensor} ranks saw the same {share} images, each of {copies} copies others"


def _columns_seen(run: Run) -> str:
    mlps, _, _, every = _network(run)
    found = seen_by_ranks(run)[0]["parameters"]
    return f"rank 0 keeps {found:,} of {every:,} numbers; {mlps} sums in the forward pass"


def _entry_seen(run: Run) -> str:
    mlps = _network(run)[0]
    return f"{mlps} sums in the forward pass, {mlps} in backward; the losses of one process"


def _grid_seen(run: Run) -> str:
    spread = seen_by_ranks(run)[0]["spread"]
    kept = spread["bytes"]["weights"] / 4
    return (
        f"rank 0 keeps {kept:,.0f} of {_network(run)[3]:,} numbers: its share of each MLP, and of "
        f"that a part, with {spread['mesh'][0]} copies"
    )


CHECKS = {
    "day4.mates": of_ranks(
        title="ranks of one network see the same images",
        todo=29,
        configs=({"rung": "large"}, {}, {"tensor": 1}),
        seen=_mates_seen,
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
        word="SharedMlp",
        rung="tensor",
        small=NO_WEIGHTS,
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
