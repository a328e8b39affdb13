"""Checks of sharding: what each rank keeps, when it gathers the rest, and how it saves."""

from __future__ import annotations

from course.checks.rank_checks import evidence_of_ranks, of_ranks
from course.runs.run import Run


def _gathers(run: Run, phase: str) -> list[int]:
    return evidence_of_ranks(run)[0].get("gathers", {}).get(phase, [])


def _describe_sharded(run: Run) -> str:
    evidence = evidence_of_ranks(run)[0]
    spread, size = evidence["spread"], 4 * evidence["parameters"] / 2**20
    kept = spread["bytes"]["weights"] / 2**20
    placed = ", ".join(f"{count} as {how}" for how, count in spread["placements"].items())
    return (
        f"rank 0 keeps {kept:.1f} MiB of {size:.1f} of weights, {placed}; "
        f"{sum(_gathers(run, 'forward'))} all-gathers in forward, "
        f"{sum(_gathers(run, 'backward'))} in backward"
    )


def _describe_reshard(run: Run) -> str:
    return f"{sum(_gathers(run, 'forward'))} all-gathers in forward, and none in backward"


def _describe_policy(run: Run) -> str:
    evidence = evidence_of_ranks(run)[0]
    (gathered,), (reduced,) = evidence["gathered_types"], evidence["reduced_types"]
    return f"weights travel in {gathered}, gradients in {reduced}; kept and updated in float32"


def _describe_prefetch(run: Run) -> str:
    forward, backward = (
        " ".join(map(str, _gathers(run, phase))) for phase in ("forward", "backward")
    )
    return f"all-gathers between computations: forward {forward}; backward {backward}"


def _describe_clip(run: Run) -> str:
    return f"all ranks' gradients together have at most the norm {run.config.clip:g}"


def _describe_whole(run: Run) -> str:
    size = 4 * run.record.evidence["parameters"]
    held = max(evidence.get("held_to_save", 0) for evidence in evidence_of_ranks(run)[1:])
    return (
        f"weights.pt holds {size / 2**20:.1f} MiB, written by rank 0; another rank held "
        f"{held / 2**20:.1f} MiB meanwhile"
    )


def _describe_checkpoint(run: Run) -> str:
    if run.config.resume:
        return f"went on with epoch {run.steps['epoch'].min()}, on {run.record.gpus} ranks"
    parts = sorted((run.folder / "checkpoint").glob("*.distcp"))
    size = sum(path.stat().st_size for path in parts)
    return f"{len(parts)} ranks wrote {size / 2**20:.1f} MiB: weights, and what AdamW keeps"


def _describe_compiled(run: Run) -> str:
    graphs = run.record.evidence["compiled"]["graphs"][-1]
    return (
        f"{graphs} graph(s) for all blocks, without a break; the hooks between them stay Python's"
    )


CHECKS = {
    "day4.shard": of_ranks(
        title="each rank keeps a share, and gathers unit by unit",
        todo=21,
        configs=({"rung": "large"}, {}, {"ranks": 1}, {"shard": "hybrid", "ranks": 4}),
        describe=_describe_sharded,
        word="fully_shard",
    ),
    "day4.reshard": of_ranks(
        title="gathered once, for both passes",
        todo=22,
        configs=({"shard": "zero3"}, {"shard": "zero2"}, {"shard": "hybrid", "ranks": 4}),
        describe=_describe_reshard,
        word="reshard",
        changes={"shard": "zero2"},
    ),
    "day4.policy": of_ranks(
        title="weights travel in bf16, and are kept in fp32",
        todo=23,
        configs=({"gather_bf16": False}, {}),
        describe=_describe_policy,
        word="policy",
        changes={"gather_bf16": True, "precision": "bf16"},
    ),
    "day4.prefetch": of_ranks(
        title="the next units are gathered while one computes",
        todo=24,
        configs=({}, {"prefetch": 1}, {"prefetch": 2}),
        describe=_describe_prefetch,
        word="prefetch",
        changes={"prefetch": 2},
    ),
    "day4.clip": of_ranks(
        title="gradients are shortened by the length of all ranks' together",
        todo=25,
        configs=({"clip": 0.0}, {"clip": 0.5}, {"clip": 0.5, "rung": "large"}),
        describe=_describe_clip,
        word="clip",
        changes={"clip": 1.0},
    ),
    "day4.whole": of_ranks(
        title="rank 0 writes whole weights, and no other rank holds them",
        todo=26,
        configs=({"rung": "large"}, {}, {"ranks": 1}),
        describe=_describe_whole,
        word="save_weights",
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
        word="save_shards",
        changes={"save_shards": True},
    ),
    "day4.compile": of_ranks(
        title="blocks are compiled, each by itself",
        todo=28,
        configs=({}, {"compile": "default"}),
        describe=_describe_compiled,
        word="compile",
        changes={"compile": "default"},
    ),
}
