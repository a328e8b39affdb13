"""How it is seen that ranks share out the MLPs of one network: who sees, keeps, adds up what."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

from course.runs.run import Run
from labs.day4_2_fsdp.rank_checks import of_ranks, seen_by_ranks

EQUAL = 1e-4  # of a loss, between runs that saw the same images: rounding
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


def _mates_faults(run: Run, against: Run) -> Iterator[str]:
    seen, cfg = seen_by_ranks(run), run.config
    due = cfg.batch_size * cfg.tensor // run.record.gpus
    labels = [each["labels"][0] for each in seen]
    copies = [labels[at : at + cfg.tensor] for at in range(0, len(labels), cfg.tensor)]
    ddp, column = seen[0].get("ddp"), [*range(0, run.record.gpus, cfg.tensor)]
    if seen[0]["share"] != due:
        yield (
            f"each rank saw {seen[0]['share']} images of a batch of {cfg.batch_size}, and {due} "
            f"are due: {cfg.tensor} ranks work on the same ones"
        )
    elif any(each != mates[0] for mates in copies for each in mates):
        yield (
            "ranks of one network saw different images, and add up what does not belong together: "
            "which part of the data a rank takes is its place among the *copies*"
        )
    elif len(copies) > 1 and copies[0][0] == copies[1][0]:
        yield "all copies saw the same images: each copy's part is its place among the *copies*"
    elif ddp and ddp.get("ranks", column) != column:
        yield (
            f"DDP averages over ranks {ddp['ranks']}, and the same part of the network have "
            f"{column}: once ranks keep different parts, it would mix them. Its group is copies'"
        )


def _mates_seen(run: Run) -> str:
    share, copies = seen_by_ranks(run)[0]["share"], run.record.gpus // run.config.tensor
    return f"{run.config.tensor} ranks saw the same {share} images, each of {copies} copies others"


def _columns_faults(run: Run, against: Run) -> Iterator[str]:
    yield from _mates_faults(run, against)
    seen, cfg = seen_by_ranks(run), run.config
    mlps, cut, once, every = _network(run)
    for rank, found in enumerate(each["parameters"] for each in seen):
        due = every - cut + cut // cfg.tensor - once * (rank % cfg.tensor > 0)
        if found == every:
            yield (
                f"rank {rank} has all {every:,} numbers: no MLP was shared out. Put a "
                f"`SharedMlp(…)` in the place of each"
            )
        elif found == due + once:
            yield (
                f"rank {rank} adds the second layers' biases as well, so that the sum has them "
                f"{cfg.tensor} times: leave them to one rank"
            )
        elif found != due:
            yield f"rank {rank} updates {found:,} numbers, and its share is {due:,}"
    sums = seen[0].get("forward_collectives", {}).get("allreduce", 0)
    if sums != mlps:
        yield (
            f"{sums} sums over ranks in the forward pass, and {mlps} MLPs: one each, where parts "
            f"of the result become the result"
        )
    yield from _first_faults(run, against)


def _first_faults(run: Run, against: Run) -> Iterator[str]:
    """The first loss, which nothing but the forward pass decides, beside that of one process."""
    if run.record.gpus > run.config.tensor:  # copies crop their images differently
        return
    first, due = (each.steps["loss"].iloc[0] for each in (run, against))
    if abs(first / due - 1) > EQUAL:
        yield (
            f"the first loss is {first:.4f}, and {due:.4f} in one process: the hidden channels "
            f"that a rank makes must be those that it takes, and each result the sum of all"
        )


def _columns_seen(run: Run) -> str:
    mlps, _, _, every = _network(run)
    found = seen_by_ranks(run)[0]["parameters"]
    return f"rank 0 keeps {found:,} of {every:,} numbers; {mlps} sums in the forward pass"


def _entry_faults(run: Run, against: Run) -> Iterator[str]:
    yield from _columns_faults(run, against)
    seen, mlps = seen_by_ranks(run)[0], _network(run)[0]
    sums = seen.get("backward_collectives", {}).get("allreduce", 0)
    if sums > mlps and "ddp" not in seen:  # whose messages are sums, too
        yield (
            f"{sums} sums over ranks in backward, and {mlps} MLPs: what each part of a sum gets is "
            f"the sum's own gradient, and needs no message"
        )
    elif sums < mlps:
        yield (
            f"{sums} sums over ranks in backward, and {mlps} MLPs: each rank sends back the "
            f"gradient of its own hidden channels alone, so that what lies before learns from a "
            f"part. The loss hardly shows it"
        )
    elif run.record.gpus == run.config.tensor:
        both = zip(run.steps["loss"], against.steps["loss"])
        apart = max(abs(own / other - 1) for own, other in both)
        if apart > EQUAL:
            yield (
                f"losses differ by up to {apart:.2%} from those of one process, which saw the same "
                f"images: gradients are added up, and not averaged"
            )


def _entry_seen(run: Run) -> str:
    mlps = _network(run)[0]
    return f"{mlps} sums in the forward pass, {mlps} in backward; the losses of one process"


def _grid_faults(run: Run, against: Run) -> Iterator[str]:
    spread, column = (
        seen_by_ranks(run)[0]["spread"],
        [*range(0, run.record.gpus, run.config.tensor)],
    )
    if whole := spread["placements"].get("whole", 0):
        yield (
            f"{whole} weights are in no shard: give each unit to `fully_shard(…)`, then the "
            f"network, before the optimizer is made"
        )
    elif (found := spread.get("among", column)) != column:
        yield (
            f"weights are shared out over ranks {found}, and the same part of the network have "
            f"{column}: mesh=copies, not mates"
        )
    yield from _entry_faults(run, against)


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
        seen=_mates_seen,
        word="copies",
        faults=_mates_faults,
        rung="tensor",
        gpus=GRID,
    ),
    "day4.columns": of_ranks(
        title="each rank keeps some hidden channels of every MLP",
        todo=30,
        seen=_columns_seen,
        word="SharedMlp",
        faults=_columns_faults,
        rung="tensor",
    ),
    "day4.entry": of_ranks(
        title="what lies before an MLP learns from all of it",
        todo=31,
        seen=_entry_seen,
        word="Entry",
        faults=_entry_faults,
        rung="tensor",
    ),
    "day4.grid": of_ranks(
        title="copies share out what a rank keeps once more",
        todo=32,
        seen=_grid_seen,
        word="fully_shard",
        faults=_grid_faults,
        rung="tensor",
        gpus=GRID,
        shard="zero3",
    ),
}
