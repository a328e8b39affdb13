"""Lab 4.2: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import Lab
from course.checks.lab_configs import of_ranks
from course.runs.run import Run
from labs.day4_2_fsdp.configs import RECORDINGS


def _describe_checkpoint(run: Run) -> str:
    parts = sorted((run.folder / "checkpoint").glob("*.distcp"))
    size = sum(path.stat().st_size for path in parts)
    return f"{size / 2**20:.1f} MiB in {len(parts)} parts, one per rank: weights and AdamW's state"


GATHERS = {"all-gathers between computations": "gathers"}
CHECKS = {
    "day4.shard": of_ranks(
        title="each rank keeps a share, and gathers unit by unit",
        todo=21,
        configs=({"rung": "large"}, {}, {"ranks": 1}, {"shard": "hybrid", "ranks": 4}),
        shows={
            "weights by placement": "spread.placements",
            "bytes that a rank keeps": "spread.bytes",
            **GATHERS,
        },
    ),
    "day4.reshard": of_ranks(
        title="gathered once, for both passes",
        todo=22,
        configs=({"shard": "zero3"}, {"shard": "zero2"}, {"shard": "hybrid", "ranks": 4}),
        shows=GATHERS,
        changes={"shard": "zero2"},
    ),
    "day4.policy": of_ranks(
        title="weights travel in bf16, and are kept in fp32",
        todo=23,
        configs=({"gather_bf16": False}, {}),
        shows={"gathered": "gathered_types", "reduced": "reduced_types"},
        changes={"gather_bf16": True, "precision": "bf16"},
    ),
    "day4.prefetch": of_ranks(
        title="the next units are gathered while one computes",
        todo=24,
        configs=({}, {"prefetch": 1}, {"prefetch": 2}),
        shows=GATHERS,
        changes={"prefetch": 2},
    ),
    "day4.clip": of_ranks(
        title="gradients are shortened by the length of all ranks' together",
        todo=25,
        configs=({"clip": 0.0}, {"clip": 0.5}, {"clip": 0.5, "rung": "large"}),
        shows={"norm of a rank's gradients at the first update": "gradient_norm"},
        changes={"clip": 1.0},
    ),
    "day4.whole": of_ranks(
        title="rank 0 writes whole weights, and no other rank holds them",
        todo=26,
        configs=({"rung": "large"}, {}, {"ranks": 1}),
        shows={"bytes that the last rank held at once, to save": "held_to_save"},
        changes={"save_weights": True},
    ),
    "day4.checkpoint": of_ranks(
        title="every rank writes its part, and any number of ranks goes on",
        todo=27,
        configs=(
            {"save_shards": False},
            {"name": "saved", "epochs": 1, "warmup_steps": 2},
            {"name": "resumed", "resume": "saved"},
            {"name": "alone", "resume": "saved", "ranks": 1},
        ),
        small={"optimizer": "adamw", "lr": 1e-3},
        describe=_describe_checkpoint,
        changes={"save_shards": True},
    ),
    "day4.compile": of_ranks(
        title="blocks are compiled, each by itself",
        todo=28,
        configs=({}, {"compile": "default"}),
        shows={"graphs after each epoch": "compiled.graphs", "breaks": "compiled.breaks"},
        changes={"compile": "default"},
    ),
}

LAB = Lab(
    number="4.2",
    title="FSDP, a network sharded over several GPUs",
    minutes=75,
    checks=CHECKS,
    recordings=RECORDINGS,
    jobs="12, of 18 runs, most of 2 processes, three of 4",
    prepare="nothing",
    stuck="the optimizer is made after sharding; all ranks gather, and one writes",
)
