"""How it is seen that a TODO about sharding works: who keeps what, gathers when, saves how."""

from __future__ import annotations

from course.checks.lab import expect
from course.checks.rank_checks import of_ranks, seen_by_ranks
from course.runs.run import Run

MUCH = 0.5  # of a network, held by a rank that writes nothing


def _gathers(run: Run, phase: str) -> list[int]:
    return seen_by_ranks(run)[0].get("gathers", {}).get(phase, [])


def _sharded_seen(run: Run) -> str:
    found = seen_by_ranks(run)[0]
    kept, weights = found["spread"]["bytes"]["weights"], found["parameters"]
    placed = ", ".join(f"{count} as {how}" for how, count in found["spread"]["placements"].items())
    return (
        f"rank 0 keeps {kept / 2**20:.1f} MiB of {4 * weights / 2**20:.1f} of weights, {placed}; "
        f"{sum(_gathers(run, 'forward'))} all-gathers in forward, "
        f"{sum(_gathers(run, 'backward'))} in backward"
    )


def _reshard_seen(run: Run) -> str:
    return f"{sum(_gathers(run, 'forward'))} all-gathers in forward, and none in backward"


def _policy_seen(run: Run) -> str:
    seen = seen_by_ranks(run)[0]
    (gathered,), (reduced,) = seen["gathered_types"], seen["reduced_types"]
    return f"weights travel in {gathered}, gradients in {reduced}; kept and updated in float32"


def _prefetch_seen(run: Run) -> str:
    said = [
        f"{phase} {' '.join(map(str, _gathers(run, phase)))}" for phase in ("forward", "backward")
    ]
    return f"all-gathers between computations: {'; '.join(said)}"


def _clip_seen(run: Run) -> str:
    return f"all ranks' gradients together have at most the norm {run.config.clip:g}"


def _whole_seen(run: Run) -> str:
    size = 4 * run.record.evidence["parameters"]
    held = max(seen.get("held_to_save", 0) for seen in seen_by_ranks(run)[1:])
    expect(
        held < MUCH * size,
        f"another rank than rank 0 held {held / size:.0%} of the network while it was saved, "
        f"expected one weight at a time: use full_state_dict=True and cpu_offload=True",
    )
    return (
        f"weights.pt holds {size / 2**20:.1f} MiB, written by rank 0; another rank held "
        f"{held / 2**20:.1f} MiB meanwhile"
    )


def _checkpoint_seen(run: Run) -> str:
    if run.config.resume:
        return f"went on with epoch {run.steps['epoch'].min()}, on {run.record.gpus} ranks"
    parts = sorted((run.folder / "checkpoint").glob("*.distcp"))
    size = sum(path.stat().st_size for path in parts)
    return f"{len(parts)} ranks wrote {size / 2**20:.1f} MiB: weights, and what AdamW keeps"


def _compiled_seen(run: Run) -> str:
    graphs = run.record.evidence["compiled"]["graphs"][-1]
    return (
        f"{graphs} graph(s) for all blocks, without a break; the hooks between them stay Python's"
    )


CHECKS = {
    "day4.shard": of_ranks(
        title="each rank keeps a share, and gathers unit by unit",
        todo=21,
        configs=({"rung": "large"}, {}, {"ranks": 1}, {"shard": "hybrid", "ranks": 4}),
        seen=_sharded_seen,
        word="fully_shard",
    ),
    "day4.reshard": of_ranks(
        title="gathered once, for both passes",
        todo=22,
        configs=({"shard": "zero3"}, {"shard": "zero2"}, {"shard": "hybrid", "ranks": 4}),
        seen=_reshard_seen,
        word="reshard",
        shard="zero2",
    ),
    "day4.policy": of_ranks(
        title="weights travel in bf16, and are kept in fp32",
        todo=23,
        configs=({"gather_bf16": False}, {}),
        seen=_policy_seen,
        word="policy",
        gather_bf16=True,
        precision="bf16",
    ),
    "day4.prefetch": of_ranks(
        title="the next units are gathered while one computes",
        todo=24,
        configs=({}, {"prefetch": 1}, {"prefetch": 2}),
        seen=_prefetch_seen,
        word="prefetch",
        prefetch=2,
    ),
    "day4.clip": of_ranks(
        title="gradients are shortened by the length of all ranks' together",
        todo=25,
        configs=({"clip": 0.0}, {"clip": 0.5}, {"clip": 0.5, "rung": "large"}),
        seen=_clip_seen,
        word="clip",
        clip=1.0,
    ),
    "day4.whole": of_ranks(
        title="rank 0 writes whole weights, and no other rank holds them",
        todo=26,
        configs=({"rung": "large"}, {}, {"ranks": 1}),
        seen=_whole_seen,
        word="save_weights",
        save_weights=True,
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
        seen=_checkpoint_seen,
        word="save_shards",
        save_shards=True,
    ),
    "day4.compile": of_ranks(
        title="blocks are compiled, each by itself",
        todo=28,
        configs=({}, {"compile": "default"}),
        seen=_compiled_seen,
        word="compile",
        compile="default",
    ),
}
