"""How it is seen that a TODO about sharding works: who keeps what, gathers when, saves how."""

from __future__ import annotations

import math
from collections.abc import Iterator

from course.checks import saved_files as saved
from course.runs.run import Run
from labs.day2_2_data_parallel.lab import NORMS_ALIKE
from labs.day4_2_fsdp.rank_checks import EQUAL, NEARLY, of_ranks, seen_by_ranks

MUCH = 0.5  # of a network, in one rank that has nothing to save


def _gathers(run: Run, phase: str) -> list[int]:
    return seen_by_ranks(run)[0].get("gathers", {}).get(phase, [])


def _units(run: Run) -> int:
    """How many units the network is to have, the root not counted."""
    import torch

    from course.training import models

    cfg = run.config
    with torch.device("meta"):
        model = models.create(cfg.model, run.record.evidence["classes"] or 1, cfg.image_px)
    return len(models.units(model, cfg.unit_blocks))


def whole_sum(run: Run) -> float:
    """The sum of all weights at the end, of which each rank knows that of its shards."""
    seen = seen_by_ranks(run)
    mesh = seen[0]["spread"]["mesh"]
    copies = mesh[0] if len(mesh) > 1 else 1 if mesh else len(seen)
    return sum(each["weights_sum"] for each in seen) / copies


def _placed_faults(run: Run, against: Run) -> Iterator[str]:
    """Weights that lie elsewhere than in shards over all ranks."""
    spread, gathered = seen_by_ranks(run)[0]["spread"], _gathers(run, "forward")
    whole = spread["placements"].get("whole", 0)
    if not gathered:
        yield "no weight was gathered in the forward pass: nothing was given to `fully_shard(…)`"
    elif whole and not spread["bytes"]["gradients"]:
        yield (
            "the optimizer holds weights from before they were sharded, which get no gradients: "
            "`optimizers.create(…)` comes after fully_shard, which puts others in their place"
        )
    elif whole:
        yield (
            f"{whole} weights are in no shard, and nobody averages their gradients: give the "
            f"network itself to `fully_shard(…)` last, which takes what no unit has"
        )
    elif math.prod(spread["mesh"]) != run.record.gpus:
        yield f"the mesh has {spread['mesh']} ranks, of {run.record.gpus}"


def _sharded_faults(run: Run, against: Run) -> Iterator[str]:
    yield from _placed_faults(run, against)
    found, units = sum(_gathers(run, "forward")), _units(run)
    if found != units + 1:
        yield (
            f"the forward pass gathered {found} times, and {units} units and the root make "
            f"{units + 1}" + ": all weights are whole at once on every rank, as with DDP. "
            "Give each unit to `fully_shard(…)` before the network" * (found == 1)
        )
    yield from _kept_faults(run)
    norm, before = (each.record.evidence["gradient_norm"] for each in (run, against))
    if not NORMS_ALIKE[0] <= norm / before <= NORMS_ALIKE[1]:
        yield f"the first gradients are {norm / before:.2f} times those of one process"
    if run.record.gpus == against.record.gpus:
        both = zip(run.steps["loss"], against.steps["loss"])
        apart = max(abs(own / other - 1) for own, other in both)
        if apart > EQUAL:
            yield f"on the same images losses differ by {apart:.2%} from those of DDP"


def _sharded_seen(run: Run) -> str:
    found = seen_by_ranks(run)[0]
    kept, weights = found["spread"]["bytes"]["weights"], found["parameters"]
    placed = ", ".join(f"{count} as {how}" for how, count in found["spread"]["placements"].items())
    return (
        f"rank 0 keeps {kept / 2**20:.1f} MiB of {4 * weights / 2**20:.1f} of weights, {placed}; "
        f"{sum(_gathers(run, 'forward'))} all-gathers in forward, "
        f"{sum(_gathers(run, 'backward'))} in backward"
    )


def _kept_faults(run: Run) -> Iterator[str]:
    """Weights that are gathered more or less often than the config asks for."""
    again, units = sum(_gathers(run, "backward")), _units(run)
    if run.config.shard == "zero2" and again:
        yield (
            f"backward gathered {again} times again what forward had thrown away: with zero2, "
            f"reshard_after_forward=False"
        )
    elif run.config.shard == "zero3" and units and not again:
        yield "backward gathered nothing: with zero3 forward is to throw away what it gathered"
    elif again > units:
        yield (
            f"backward gathered {again} times, and there are {units} units: it gathers what it is "
            f"done with. It meets them in the opposite order"
        )


def _reshard_faults(run: Run, against: Run) -> Iterator[str]:
    yield from _placed_faults(run, against)
    yield from _kept_faults(run)


def _reshard_seen(run: Run) -> str:
    return f"{sum(_gathers(run, 'forward'))} all-gathers in forward, and none in backward"


def _policy_faults(run: Run, against: Run) -> Iterator[str]:
    yield from _placed_faults(run, against)
    seen = seen_by_ranks(run)[0]
    for what, due in (("gathered", "bfloat16"), ("reduced", "float32")):
        if {*(found := seen[f"{what}_types"])} != {due}:
            name = {"gathered": "param_dtype", "reduced": "reduce_dtype"}[what]
            yield f"{what} in {' and '.join(found)}, not {due}: {name} of MixedPrecisionPolicy"
    if "bfloat16" in seen.get("loss_types", {}):
        yield "the loss was computed in bf16, which keeps three digits: scores.float()"


def _policy_seen(run: Run) -> str:
    seen = seen_by_ranks(run)[0]
    (gathered,), (reduced,) = seen["gathered_types"], seen["reduced_types"]
    return f"weights travel in {gathered}, gradients in {reduced}; kept and updated in float32"


def _prefetch_faults(run: Run, against: Run) -> Iterator[str]:
    yield from _placed_faults(run, against)
    yield from _kept_faults(run)
    ahead = run.config.prefetch
    # The unit that computes next is gathered with those ahead of it; in backward PyTorch has
    # gathered it one unit before.
    for phase, due in (("forward", ahead + 1), ("backward", ahead)):
        found = max(_gathers(run, phase), default=0)
        if found != due:
            yield (
                f"{phase}: at most {found} units were gathered before a computation, and "
                f"{due} are due with prefetch={ahead}: `set_modules_to_{phase}_prefetch(…)`"
            )


def _prefetch_seen(run: Run) -> str:
    said = [
        f"{phase} {' '.join(map(str, _gathers(run, phase)))}" for phase in ("forward", "backward")
    ]
    return f"all-gathers between computations: {'; '.join(said)}"


def _clip_faults(run: Run, against: Run) -> Iterator[str]:
    norm, clip = run.record.evidence["gradient_norm"], run.config.clip
    before = against.record.evidence["gradient_norm"]
    if norm > clip * (1 + NEARLY):
        yield (
            f"the first update's gradients, over all ranks, are {norm:.4g} long, and clip is "
            f"{clip:g}: `clip_grad_norm_(…)` of the network's own weights, behind backward"
        )
    elif before > clip and norm < clip * (1 - NEARLY):
        yield f"gradients of length {before:.4g} were shortened to {norm:.4g}, and not to {clip:g}"


def _clip_seen(run: Run) -> str:
    return f"the first gradients are {run.record.evidence['gradient_norm']:.4g} long, on all ranks"


def _holds_shards(run: Run) -> bool:
    import torch

    try:
        found = torch.load(run.folder / "weights.pt", weights_only=True, map_location="cpu")
    except Exception as error:  # as long as nobody has imported their class
        return "DTensor" in str(error)
    return any(hasattr(each, "to_local") for each in found.values())


def _whole_faults(run: Run, against: Run) -> Iterator[str]:
    writers = [rank["rank"] for rank in run.ranks if rank.get("weights_by")]
    if writers != [0]:
        yield f"weights.pt was written by ranks {writers or 'none'}: by rank 0 alone"
        return
    if _holds_shards(run):
        yield (
            "weights.pt holds DTensors, rank 0's shards, which no other process can read: that is "
            "what state_dict() gives. `get_model_state_dict(…)` with full_state_dict=True gathers"
        )
        return
    yield from saved.held(run, [whole_sum(run)])
    size = 4 * run.record.evidence["parameters"]
    for rank, seen in enumerate(seen_by_ranks(run)[1:], 1):
        if (share := seen.get("held_to_save", 0) / size) > MUCH:
            yield (
                f"rank {rank}, which writes nothing, held {share:.0%} of the network to save it: "
                f"a network that needs shards does not fit. With full_state_dict=True and "
                f"cpu_offload=True ranks gather one weight at a time, and rank 0 alone keeps it"
            )


def _whole_seen(run: Run) -> str:
    size = 4 * run.record.evidence["parameters"]
    held = max(seen.get("held_to_save", 0) for seen in seen_by_ranks(run)[1:])
    return (
        f"weights.pt holds {size / 2**20:.1f} MiB, written by rank 0; another rank held "
        f"{held / 2**20:.1f} MiB meanwhile"
    )


def _checkpoint_faults(run: Run, against: Run) -> Iterator[str]:
    from torch.distributed.checkpoint import FileSystemReader

    if run.config.resume:
        yield from _resumed_faults(run, against)
    if not run.config.save_shards:
        return
    folder = run.folder / "checkpoint"
    if not (folder / ".metadata").exists():
        yield "there is no checkpoint: all ranks call `dcp.save(…)` with run.checkpoint"
        return
    by = {path.name.split("_")[2] for path in folder.glob("*.distcp")}
    if len(by) != run.record.gpus:
        yield f"{len(by)} of {run.record.gpus} ranks wrote a part: all of them call `dcp.save(…)`"
    names = [*FileSystemReader(folder).read_metadata().state_dict_metadata]
    for what, part in (("weights", "model_state_dict."), ("the optimizer's state", "exp_avg")):
        if not any(part in name for name in names):
            yield f"the checkpoint is without {what}: training_state(…) has both"
    if "epochs" not in names:
        yield "the checkpoint does not say how many epochs are done: training_state(…, cfg.epochs)"


def _resumed_faults(run: Run, against: Run) -> Iterator[str]:
    """A run that goes on from another, beside one that was not interrupted, or the one before."""
    steps = run.steps
    if steps.empty or steps["epoch"].min() == 0:
        yield "training began anew with epoch 0: first_epoch is what the checkpoint says"
        return
    last, first = against.steps["loss"].iloc[0], steps["loss"].iloc[0]
    if not first < last:
        yield f"the first loss is {first:.3f}, that of new weights {last:.3f}: nothing was loaded"


def _checkpoint_seen(run: Run) -> str:
    if run.config.resume:
        return f"went on with epoch {run.steps['epoch'].min()}, on {run.record.gpus} ranks"
    parts = sorted((run.folder / "checkpoint").glob("*.distcp"))
    size = sum(path.stat().st_size for path in parts)
    return f"{len(parts)} ranks wrote {size / 2**20:.1f} MiB: weights, and what AdamW keeps"


def _compiled_faults(run: Run, against: Run) -> Iterator[str]:
    compiled = run.record.evidence.get("compiled", {})
    graphs, breaks = compiled.get("graphs", [0]), compiled.get("breaks", {})
    if not graphs[-1]:
        yield "nothing was compiled: `block.compile(…)` of each block, before it is sharded"
    elif breaks:
        yield (
            f"graphs broke, as where the compiler meets the hooks of a unit: {[*breaks][0]}. "
            f"Compile each block by itself"
        )
    placements = seen_by_ranks(run)[0]["spread"]["placements"]  # nobody watches what is compiled
    if run.config.shard and "whole" in placements:
        yield f"{placements['whole']} weights are in no shard, or the optimizer's are not those"


def _compiled_seen(run: Run) -> str:
    graphs = run.record.evidence["compiled"]["graphs"][-1]
    return (
        f"{graphs} graph(s) for all blocks, without a break; the hooks between them stay Python's"
    )


CHECKS = {
    "day4.shard": of_ranks(
        title="each rank keeps a share, and gathers unit by unit",
        todo=21,
        seen=_sharded_seen,
        word="fully_shard",
        faults=_sharded_faults,
    ),
    "day4.reshard": of_ranks(
        title="gathered once, for both passes",
        todo=22,
        seen=_reshard_seen,
        word="reshard",
        faults=_reshard_faults,
        shard="zero2",
    ),
    "day4.policy": of_ranks(
        title="weights travel in bf16, and are kept in fp32",
        todo=23,
        seen=_policy_seen,
        word="policy",
        faults=_policy_faults,
        policy=True,
        precision="bf16",
    ),
    "day4.prefetch": of_ranks(
        title="the next units are gathered while one computes",
        todo=24,
        seen=_prefetch_seen,
        word="prefetch",
        faults=_prefetch_faults,
        prefetch=2,
    ),
    "day4.clip": of_ranks(
        title="gradients are shortened by the length of all ranks' together",
        todo=25,
        seen=_clip_seen,
        word="clip",
        faults=_clip_faults,
        clip=1.0,
    ),
    "day4.whole": of_ranks(
        title="rank 0 writes whole weights, and no other rank holds them",
        todo=26,
        seen=_whole_seen,
        word="save_weights",
        faults=_whole_faults,
        save_weights=True,
    ),
    "day4.checkpoint": of_ranks(
        title="every rank writes its part, and any number of ranks goes on",
        todo=27,
        seen=_checkpoint_seen,
        word="save_shards",
        faults=_checkpoint_faults,
        save_shards=True,
    ),
    "day4.compile": of_ranks(
        title="blocks are compiled, each by itself",
        todo=28,
        seen=_compiled_seen,
        word="compile",
        faults=_compiled_faults,
        compile="default",
    ),
}
