"""What a small run showed, fact by fact: those of a learner's script must be those of the solution.

FACTS is in the order of cause and effect, so that the first difference is the one to report.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

from course.runs.run import Run

CLOSE = 2e-5  # relative: two ways to write the same differ in the last bits
HALF = 2e-3  # the same in fp16, where another scale loses other small gradients
NEARLY = 0.3  # of memory, which depends on how a script names its tensors


class Rank:
    """What one rank of a small run left: its evidence, its facts.json, the steps it did."""

    def __init__(self, run: Run, rank: int) -> None:
        self.run, self.rank, self.config = run, rank, run.config
        own = run.ranks[rank] if run.ranks else {}
        self.epochs = own.get("epochs") or run.record.epochs
        self.evidence = own.get("evidence") or run.record.evidence
        self.weights_by = own.get("weights_by") or run.record.weights_by

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The contents of facts-RANK.json."""
        return json.loads((self.run.folder / f"facts-{self.rank}.json").read_text())

    @cached_property
    def files(self) -> dict[str, Any]:
        """The contents of files.json, which describes what the run saved."""
        return json.loads((self.run.folder / "files.json").read_text())

    @cached_property
    def steps(self) -> Any:
        """The table of this rank's steps; of a run that was killed, those of the last process."""
        table = self.run.rank_steps(self.rank)
        return table[table["step"] >= (self.seen("began_at") or 0)] if len(table) else table

    @cached_property
    def sharing(self) -> list[Rank]:
        """All ranks that keep parts of one network; only this one where each keeps it whole."""
        is_split = self.config.tensor > 1 or self.config.pipeline or self.config.shard
        if not is_split:
            return [self]
        return [Rank(self.run, rank) for rank in range(self.run.launched["gpus"])]

    def seen(self, *names: str) -> Any:
        """Return an entry of the evidence; None where there is none."""
        found: Any = self.evidence
        for name in names:
            found = (found or {}).get(name)
        return found


class Contents(dict):
    """What a file must have; it may have more."""


class Fact(NamedTuple):
    """One thing that must be as in the solution: its name, its value, what to do if it differs."""

    label: str
    value: Callable[[Rank], Any]
    hint: str = ""
    unit: str = ""  # of a list's entries
    tolerance: float = CLOSE


def kinds(*names: str) -> Callable[[Rank], Any]:
    """Return a function that lists which kinds of something were counted, without how often."""
    return lambda rank: sorted({*(rank.seen(*names) or {})} - {"either"})


def entry(*names: str) -> Callable[[Rank], Any]:
    """Return a function that reads an entry of the evidence."""
    return lambda rank: rank.seen(*names)


def batches(rank: Rank) -> list[int]:
    """Return the number of images in each step."""
    return [images for images, *_ in rank.facts["batches"]]


def pixels(rank: Rank) -> list[list[float]]:
    """Return the mean of pixels and of labels in each step."""
    return [digest for _, *digest in rank.facts["batches"]]


def loss_start(*names: str) -> Callable[[Rank], Any]:
    """Return a function that gives the factor of the loss where backward began."""

    def read(rank: Rank) -> Any:
        found = rank.seen(*names, "loss_gradient")
        if found is None or rank.config.pipeline or rank.config.mix:
            return None
        return "a scale" if rank.config.precision == "fp16" and found > 1 else found

    return read


def passes(rank: Rank) -> Any:
    """Return the images of a step's micro-batches, and how much each image counts in the loss."""
    micro, found = rank.config.micro_batch, rank.seen("passes") or []
    if not micro or rank.config.pipeline:
        return None
    return {
        "the number of images": sum(size for size, _ in found),
        "a size within cfg.micro_batch": all(size <= micro for size, _ in found),
        "the factor per image": distinct([round(factor / size, 6) for size, factor in found]),
    }


def kept(rank: Rank) -> float | None:
    """Return the GiB kept for backward; of a pipeline they depend on its order."""
    return None if rank.config.pipeline else rank.seen("kept_gib")


def writers(rank: Rank) -> int:
    """Return how many ranks wrote weights.pt."""
    return sum(bool(each["weights_by"]) for each in rank.run.ranks) or len(rank.weights_by)


def weights(rank: Rank) -> Any:
    """Return what is in weights.pt; of several ranks each has its own running statistics."""
    found = rank.files["weights"]
    if isinstance(found, dict) and len(rank.run.ranks) > 1:
        return {name: each for name, each in found.items() if "running_" not in name}
    return found


def placements(rank: Rank) -> dict[str, int]:
    """Return how many weights of all ranks are placed how, where the config shards them."""
    found: Counter[str] = Counter()
    for each in rank.sharing if rank.config.shard else []:
        found.update(each.seen("spread", "placements"))
    return dict(found)


def loader(which: str) -> Callable[[Rank], Any]:
    """Return a function that gives the arguments of one of the two DataLoaders."""

    def read(rank: Rank) -> dict[str, Any]:
        found = dict(rank.seen(which) or {})
        found.pop("pin_memory", None)  # on a CPU it pins nothing: dry_runs.loading looks at it
        return found

    return read


def settings(rank: Rank) -> list[dict[str, Any]]:
    """Return for each update what filters and vectors were updated with; fp16 may skip some."""
    found = []
    for groups in rank.facts["groups"]:
        of_kinds: dict[str, list[dict[str, float]]] = {"filters": [], "vectors": []}
        for own, filters, vectors in groups:
            if filters and own not in of_kinds["filters"]:
                of_kinds["filters"].append(own)
            if vectors and own not in of_kinds["vectors"]:
                of_kinds["vectors"].append(own)
        found.append(of_kinds)
    return distinct(found) if rank.config.precision == "fp16" else found


def updated(rank: Rank) -> dict[str, int]:
    """Return how many filters and vectors the optimizers have."""
    groups = [group for each in rank.sharing for group in [*each.facts["groups"], []][0]]
    return {"filters": sum(each[1] for each in groups), "vectors": sum(each[2] for each in groups)}


def distinct(values: list[Any]) -> list[Any]:
    """Return each value once, in the order in which they first came."""
    return [value for at, value in enumerate(values) if value not in values[:at]]


def updates(rank: Rank) -> Any:
    """Return how many updates the steps had; in fp16 a scaler may skip some."""
    counts = {int(count) for count in rank.seen("updates") or {}}
    return max(counts, default=0) if rank.config.precision == "fp16" else sorted(counts)


def overflow(rank: Rank) -> Any:
    """Return whether the planted overflow was skipped; None where there was none."""
    found = rank.seen("overflow") or {}
    return None if found.get("skipped") is None else found["skipped"]


def actions(rank: Rank) -> list[list[Any]]:
    """Return what a pipeline's stages did in the last step: what, stage, micro-batch."""
    steps = rank.seen("actions") or {}
    return [each[:3] for each in [*steps.values()][-1]] if steps else []


def messages(phase: str) -> Callable[[Rank], Any]:
    """Return a function that counts the sums over ranks in a phase of the first step."""
    return lambda rank: (rank.seen(f"{phase}_collectives") or {}).get("allreduce", 0)


def losses(rank: Rank) -> list[float]:
    """Return the loss of each step."""
    return [*rank.steps["loss"]] if len(rank.steps) else []


def trained(rank: Rank) -> dict[str, Any]:
    """Return how many numbers were trained, and their sum and length at the end.

    Where ranks keep different parts of a network, they are those of all ranks.
    """
    weights = [weight for each in rank.sharing for weight in each.facts["weights"]]
    return {
        "the number": sum(math.prod(shape) for shape, *_ in weights),
        "the length": math.hypot(*(length for *_, length in weights)),
        "the sum": sum(total for _, total, _ in weights),
    }


def held_to_save(rank: Rank) -> float | None:
    """Return the bytes that the rank kept while it saved the weights."""
    held = rank.seen("held_to_save")
    return None if held is None else float(held)


def restart(name: str) -> Callable[[Rank], Any]:
    """Return a function that gives what the first step after a restart began with."""

    def read(rank: Rank) -> Any:
        at = rank.seen("began_at")
        return rank.seen("moments", str(at), name) if at else None

    return read


def saved(rank: Rank) -> int:
    """Return how often the rank called torch.save."""
    return len(rank.seen("saves") or [])


def left(rank: Rank) -> list[Any] | None:
    """Return the checkpoints that are left, by step; None on other ranks than the first."""
    found = rank.seen("left")
    return None if rank.rank or found is None else [[x["step"], x["whole"]] for x in found]


def state(rank: Rank) -> Contents:
    """Return what the newest checkpoint has."""
    return Contents(rank.files["state"])


def renamed(rank: Rank) -> Any:
    """Return whether each checkpoint was on the disk when it got its name."""
    return sorted({*(rank.seen("renamed") or {}).values()})


FACTS: tuple[Fact, ...] = (
    Fact("the call of models.create", lambda rank: rank.facts["networks"],
         "models.create(cfg.model, sets.classes)"),
    Fact("the number of processes in the group", entry("world_size"), "init_process_group"),
    Fact("the group's timeout in seconds", entry("group", "timeout_s"),
         "timeout=timedelta(seconds=cfg.collective_timeout_s)"),
    Fact("the first step of the second process", entry("began_at"),
         "load the newest whole checkpoint, on all ranks: `checkpoint.newest(…)`"),
    Fact("the first epoch", lambda rank: [*rank.steps.get("epoch", [])][:1],
         "a run that continues begins with the epoch that its checkpoint names"),
    Fact("the number of steps", lambda rank: len(rank.steps),
         "every step is done once, and one that asks to end leaves the rest to another process"),
    Fact("the number of images", batches,
         "batch_size is what one update sees over all ranks: each takes its share of it", "step"),
    Fact("the numbers of the images", entry("taken"),
         "give the loader your sampler, which knows the rank and is given the epoch", "epoch"),
    Fact("the numbers of the validation images", entry("val_taken"),
         "each rank validates its own share, in which no image comes twice", "epoch"),
    Fact("the training DataLoader's", loader("loader"), "its arguments are those of the config"),
    Fact("the validation DataLoader's", loader("val_loader"),
         "its arguments, too, are the config's"),
    Fact("the mean of pixels and labels", pixels,
         "the network must be shown the same images; leave the random numbers as they were",
         "step"),
    Fact("the number of optimizers", entry("optimizers"),
         "one optimizer, which keeps its momentum, and whose step() is called"),
    Fact("the number of updates", updates, "one update a batch", "step"),
    Fact("the number of updated weights, of", updated,
         "the optimizer gets every weight once, and backward reaches all of them"),
    Fact("the optimizer's setting", settings,
         "the optimizer's groups have what the config names, in every update", "update"),
    Fact("the type of the forward pass", kinds("forward_types"),
         "enter `torch.autocast(…)` with dtype= and enabled= that follow cfg.precision"),
    Fact("the type of a later forward pass", kinds("later", "forward_types"),
         "autocast belongs in every step"),
    Fact("the type of the validation", kinds("validation", "forward_types"),
         "hand `autocast` to validate"),
    Fact("the type of the backward pass", kinds("backward_types"), "the forward pass decides it"),
    Fact("the type of the loss", kinds("loss_types"),
         "the loss belongs under autocast, which computes it in fp32; else use scores.float()"),
    Fact("autocast in the backward pass", entry("autocast_in_backward"),
         "only the forward pass and the loss belong inside"),
    Fact("the type of the updated weights", kinds("updated_types"), "weights must stay fp32"),
    Fact("the origin of BatchNorm's statistics in training", kinds("statistics"),
         "model.train() at the beginning of each epoch"),
    Fact("the origin of BatchNorm's statistics in validation", kinds("validation", "statistics"),
         "model.eval() before validation"),
    Fact("the layout of the convolutions' inputs", kinds("input_layouts"),
         "images.to(memory_format=torch.channels_last) if cfg.channels_last"),
    Fact("the layout of inputs in a later step", kinds("later", "input_layouts"),
         "convert the images in every step"),
    Fact("the layout of the weights", kinds("weight_layouts"),
         "model.to(memory_format=torch.channels_last) if cfg.channels_last"),
    Fact("of the micro-batches,", passes,
         "split images and labels, and multiply each loss by its share: "
         "`* len(targets) / len(labels)`"),
    Fact("the factor of the loss where backward starts", loss_start(),
         "scaler.scale(loss).backward()"),
    Fact("the factor of the loss in a later step", loss_start("later"),
         "scaler.scale(loss).backward(), in every step"),
    Fact("DDP's setting", entry("ddp"),
         "bucket_cap_mb=cfg.bucket_mb, find_unused_parameters=cfg.find_unused; its group is that "
         "of the ranks with the same weights"),
    Fact("the number of weights that are", placements,
         "give each unit to `fully_shard(…)`, then the network, before the optimizer is made"),
    Fact("the shape of the mesh", entry("spread", "mesh"),
         "the mesh has two rows for hybrid, else one; give it to fully_shard"),
    Fact("the ranks that share the weights", entry("spread", "among"),
         "give the mesh of these ranks to fully_shard"),
    Fact("the number of all-gathers between computations", entry("gathers"),
         "what is gathered when depends on reshard_after_forward and on what is prefetched"),
    Fact("the list of blocks that are gathered ahead, in", lambda rank: rank.facts["prefetch"],
         "in forward the blocks that follow; in backward, which goes from the last block to the "
         "first, those before it, the nearest first"),
    Fact("the type of gathered weights", kinds("gathered_types"), "param_dtype of the policy"),
    Fact("the type of reduced gradients", kinds("reduced_types"), "reduce_dtype of the policy"),
    Fact("the number of sums over ranks in the forward pass", messages("forward"),
         "each MLP's parts are added up once, by the ranks of one group"),
    Fact("the number of sums over ranks in the backward pass", messages("backward"),
         "each group adds up what its own ranks have, once"),
    Fact("the memory in GiB that is kept for the backward pass", kept,
         "what is kept depends on the blocks that the config names", tolerance=NEARLY),
    Fact("the number of operators computed again in backward, of", entry("recomputed"),
         "checkpoint the blocks that the config names, each by itself"),
    Fact("what a stage of the pipeline does (what, stage, micro-batch)", actions,
         "stages and their order are the config's: `pipelines.create_schedule(…)`", "pass"),
    Fact("the call of torch.compile", lambda rank: distinct(rank.facts["compile"]),
         "compile the network once, before the loop and before DDP, if cfg.compile is not empty: "
         "mode=cfg.compile"),
    Fact("the number of layers that compiled graphs computed", lambda rank: rank.facts["compiled"],
         "compile all of the network, once, and call what `torch.compile(…)` returns"),
    Fact("the number of graph breaks:", entry("compiled", "breaks"),
         "take what breaks the graph out of the network; torch._dynamo.explain shows the line"),
    Fact("the number of traced phases in step", entry("traced"),
         "profiling.schedule(cfg), and a profiler.step() at the end of every step"),
    Fact("whether an overflow was skipped", overflow,
         "one scaler for all steps, whose step(optimizer) skips such a step; update() in each"),
    Fact("the checksum of the images after the restart", restart("images"),
         "the epoch continues after the batches that it has seen: `skip(…)`"),
    Fact("the loss scale after the restart", restart("scale"), "save and load the scaler's state"),
    Fact("the learning rate after the restart", restart("rate"), "save and load the schedule"),
    Fact("the checksum of the weights after the restart", restart("weights"),
         "save and load the network's state"),
    Fact("the checksum of the momentum after the restart", restart("momentum"),
         "save and load the optimizer's state"),
    Fact("the checksum of the random numbers after the restart", restart("random"),
         "restore them last: `randomness.set_states(…)`"),
    Fact("the number of calls of torch.save", saved,
         "rank 0 saves every cfg.save_every steps, and when asked to end"),
    Fact("the list of checkpoints that are left (step, whole)", left,
         "write a draft, rename it when it is whole, and keep the last two"),
    Fact("whether a checkpoint was on the disk when it was renamed", renamed,
         "`file.flush()`, `os.fsync(file.fileno())`, then rename"),
    Fact("in the newest checkpoint,", state,
         "save the state of every part, the step and the random numbers"),
    Fact("the loss", losses, unit="step"),
    Fact("of the trained weights,", trained),
    Fact("the validation's", lambda rank: rank.epochs,
         "add up sums and counts over the ranks, and divide once", "epoch"),
    Fact("the number of ranks that wrote weights.pt", writers,
         "one rank writes it: `if run.rank == 0`"),
    Fact("the memory of a rank while the weights are saved", held_to_save,
         "with full_state_dict=True and cpu_offload=True only rank 0 keeps them", tolerance=NEARLY),
    Fact("in weights.pt", weights,
         "save the network itself, not what is wrapped around it, after the last epoch"),
    Fact("in the checkpoint", lambda rank: rank.files["checkpoint"],
         "all ranks call `dcp.save(…)` on training_state(…)"),
)  # fmt: skip


def difference(seen: Any, due: Any, tolerance: float) -> tuple[str, Any, Any] | None:
    """Return where two values differ first, and what each has there; None where they are equal."""
    if isinstance(seen, dict) and isinstance(due, dict):
        more = [] if isinstance(due, Contents) else [key for key in seen if key not in due]
        for key in [*due, *more]:
            if found := difference(seen.get(key), due.get(key), tolerance):
                path, *values = found
                return (f"{key} {path}".strip(), *values)
        return None
    if isinstance(seen, list) and isinstance(due, list):
        if len(seen) == len(due):
            for place, pair in enumerate(zip(seen, due)):
                if found := difference(*pair, tolerance):
                    path, *values = found
                    return (f"[{place}] {path}".strip(), *values)
            return None
        return ("", seen, due)
    if isinstance(seen, float) and isinstance(due, int | float):
        near = math.isclose(seen, due, rel_tol=tolerance, abs_tol=1e-7)
        return None if near or (math.isnan(seen) and math.isnan(due)) else ("", seen, due)
    return None if seen == due else ("", seen, due)


def differences(run: Run, due: Run) -> Iterator[str]:
    """Yield what a script's small run has otherwise than the solution's, the cause first."""
    ranks = run.launched["gpus"]
    pairs = [(Rank(run, rank), Rank(due, rank)) for rank in range(ranks)]
    for fact in FACTS:
        for own, other in pairs:
            tolerance = max(fact.tolerance, HALF if own.config.precision == "fp16" else 0)
            found = difference(fact.value(own), fact.value(other), tolerance)
            if found:
                where, seen, wanted = found
                where = re.sub(r"^\[(\d+)\]", rf"of {fact.unit} \1" if fact.unit else "", where)
                place = " ".join([fact.label, *re.sub(r"\[\d+\]", "", where).split()])
                on_rank = f" on rank {own.rank}" * (ranks > 1)
                yield (
                    f"{place}{on_rank} is {in_words(seen)}, and {in_words(wanted)} in the solution"
                    + f": {fact.hint}" * bool(fact.hint)
                )
                break


def in_words(value: Any) -> str:
    """A value as a message shows it, not too long."""
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict):
        text = ", ".join(f"{name}={in_words(each)}" for name, each in value.items())
    elif isinstance(value, list):
        text = " and ".join(map(in_words, value)) if len(value) < 9 else f"{len(value)} of them"
    else:
        text = "nothing" if value is None else str(value)
    return (text or "nothing")[:200]
