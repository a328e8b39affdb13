"""What a small run showed, fact by fact: those of a learner's script must be those of the solution.

FACTS is in the order of cause and effect, so that the first difference is the one to report.
"""

from __future__ import annotations

import json
import math
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
        return [Rank(self.run, rank) for rank in range(self.run.gpus)]

    def seen(self, *names: str) -> Any:
        """Return an entry of the evidence; None where it is missing."""
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
        "number of images": sum(size for size, _ in found),
        "size": "above cfg.micro_batch" if any(size > micro for size, _ in found) else "allowed",
        "factor of the loss per image": distinct(
            [round(factor / size, 6) for size, factor in found]
        ),
    }


def kept(rank: Rank) -> float | None:
    """Return the MiB kept for backward; of a pipeline they depend on its order."""
    return None if rank.config.pipeline else 1024 * (rank.seen("kept_gib") or 0.0)


def recomputed(rank: Rank) -> dict[str, int]:
    """Return how often backward computed each operator of the forward pass."""
    found = rank.seen("recomputed") or {}
    return {f"number of {name} calls repeated in backward": count for name, count in found.items()}


def gathers(rank: Rank) -> dict[str, str]:
    """Return how many all-gathers came before each stretch of computing, in each pass."""
    found = rank.seen("gathers") or {}
    return {
        f"number of all-gathers before each computation in {phase}": " ".join(map(str, counts))
        for phase, counts in found.items()
    }


def writers(rank: Rank) -> int:
    """Return how many ranks wrote weights.pt."""
    return sum(bool(each["weights_by"]) for each in rank.run.ranks) or len(rank.weights_by)


def weights(rank: Rank) -> Any:
    """Return what is in weights.pt; None if several ranks wrote it: which one came last is random.

    Running statistics are left out if there are several ranks, because each has different ones.
    """
    state = rank.files["weights"]
    if writers(rank) > 1:
        return None
    if isinstance(state, dict) and len(rank.run.ranks) > 1:
        return {name: tensor for name, tensor in state.items() if "running_" not in name}
    return state


def placements(rank: Rank) -> dict[str, int]:
    """Return how many weights of all ranks are placed how, where the config shards them."""
    found: Counter[str] = Counter()
    for each in rank.sharing if rank.config.shard else []:
        found.update(each.seen("spread", "placements"))
    return {f"number of weights that are {how}": count for how, count in found.items()}


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
    return {
        f"number of {kind} that are updated": sum(group[at] for group in groups)
        for at, kind in ((1, "filters"), (2, "vectors"))
    }


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


PASSES = {
    "F": "forward",
    "B": "backward",
    "I": "gradients of the inputs",
    "W": "gradients of the weights",
}


def traced(rank: Rank) -> list[str]:
    """Return which steps were traced, and whether completely."""
    found = rank.seen("traced") or {}
    return [f"step {step}" + ", in part" * (phases < 5) for step, phases in found.items()]


def actions(rank: Rank) -> list[str]:
    """Return what a pipeline's stages did in the last step."""
    steps = rank.seen("actions") or {}
    last = [*steps.values()][-1] if steps else []
    return [f"{PASSES[kind]} of micro-batch {batch} in stage {at}" for kind, at, batch, *_ in last]


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
        "number": sum(math.prod(shape) for shape, *_ in weights),
        "length": math.hypot(*(length for *_, length in weights)),
        "sum": sum(total for _, total, _ in weights),
    }


def restart(rank: Rank) -> dict[str, Any]:
    """Return what the first step after a restart began with; {} in a run without one."""
    if not rank.seen("began_at"):
        return {}
    return rank.facts["began"] | {"random numbers": rank.facts["random"][0]}


def saved(rank: Rank) -> int:
    """Return how often the rank called torch.save to save its training."""
    return rank.facts["saves"] if rank.config.save_every else 0


def left(rank: Rank) -> list[str] | None:
    """Return the checkpoints that are left; None on all ranks but the first."""
    found = rank.seen("left")
    if rank.rank or found is None:
        return None
    return [f"step {x['step']}" + ", unreadable" * (not x["whole"]) for x in found]


def state(rank: Rank) -> Contents:
    """Return what the newest checkpoint has."""
    return Contents(dict.fromkeys(rank.files["state"], "present"))


def renamed(rank: Rank) -> Any:
    """Return whether each checkpoint was on the disk when it got its name."""
    return sorted({*rank.facts["renamed"].values()})


def shared_checkpoint(rank: Rank) -> dict[str, Any] | None:
    """Return who wrote the checkpoint of all ranks, and which entries it has."""
    found = rank.files["checkpoint"]
    names = dict.fromkeys(found["names"], "present") if found else {}
    return found and {"number of writers": found["ranks"], **names}


FACTS: tuple[Fact, ...] = (
    Fact("call of models.create", lambda rank: rank.facts["networks"],
         "models.create(cfg.model, sets.classes)"),
    Fact("number of processes in the group", entry("world_size"), "init_process_group"),
    Fact("timeout of the group in seconds", entry("group", "timeout_s"),
         "timeout=timedelta(seconds=cfg.collective_timeout_s)"),
    Fact("first step after the restart", entry("began_at"),
         "save every cfg.save_every steps and after SIGTERM, and load the newest complete "
         "checkpoint on all ranks: `checkpoint.newest(…)`"),
    Fact("first epoch", lambda rank: [*rank.steps.get("epoch", [])][:1],
         "a run that continues begins with the epoch that its checkpoint names"),
    Fact("number of steps", lambda rank: len(rank.steps),
         "do every step once, and after SIGTERM leave the other steps to the next process"),
    Fact("number of images", batches,
         "cfg.batch_size counts the images of all ranks, which share them equally", "step"),
    Fact("order of the images", entry("taken"),
         "give the loader your sampler, and call sampler.set_epoch(epoch)", "epoch"),
    Fact("order of the validation images", entry("val_taken"),
         "each rank validates its own images, and no image is validated twice", "epoch"),
    Fact("the training DataLoader", loader("loader"), "use the config's value"),
    Fact("the validation DataLoader", loader("val_loader"), "use the config's value here too"),
    Fact("mean of the batch (pixels, labels)", pixels,
         "train on the same images: draw no other random numbers before them, and after a restart "
         "continue the epoch: `skip(…)`", "step"),
    Fact("number of optimizers", entry("optimizers"),
         "create one optimizer, and call its step()"),
    Fact("number of updates per step", updates, "update once per batch"),
    Fact("", updated,
         "give every weight to the optimizer once, and let backward reach all of them"),
    Fact("the optimizer", settings, "use the config's settings in every update", "update"),
    Fact("type of the forward pass", kinds("forward_types"),
         "enter `torch.autocast(…)` with dtype= and enabled= that follow cfg.precision"),
    Fact("type of a later forward pass", kinds("later", "forward_types"),
         "enter autocast in every step"),
    Fact("type of the validation's forward pass", kinds("validation", "forward_types"),
         "pass autocast to validate"),
    Fact("type of the backward pass", kinds("backward_types"), "the forward pass decides it"),
    Fact("type of the loss", kinds("loss_types"),
         "compute the loss under autocast, or from scores.float()"),
    Fact("autocast in the backward pass", entry("autocast_in_backward"),
         "leave autocast before backward"),
    Fact("type of the updated weights", kinds("updated_types"), "keep the weights in fp32"),
    Fact("source of BatchNorm's statistics in training", kinds("statistics"),
         "call model.train() at the start of each epoch"),
    Fact("source of BatchNorm's statistics in validation", kinds("validation", "statistics"),
         "call model.eval() before validation"),
    Fact("layout of the convolutions' inputs", kinds("input_layouts"),
         "images.to(memory_format=torch.channels_last) if cfg.channels_last"),
    Fact("layout of the inputs in a later step", kinds("later", "input_layouts"),
         "convert the images in every step"),
    Fact("layout of the weights", kinds("weight_layouts"),
         "model.to(memory_format=torch.channels_last) if cfg.channels_last"),
    Fact("the micro-batches", passes,
         "split images and labels, and multiply each loss by `len(targets) / len(labels)`"),
    Fact("factor of the loss at the start of backward", loss_start(),
         "multiply the loss only by the scaler's scale, in fp16, and by a micro-batch's share"),
    Fact("factor of the loss in a later step", loss_start("later"),
         "call scaler.scale(loss).backward() in every step"),
    Fact("DDP", entry("ddp"),
         "DDP(…, bucket_cap_mb=cfg.bucket_mb, find_unused_parameters=cfg.find_unused), in the "
         "group of the ranks with the same weights"),
    Fact("shape of the mesh", entry("spread", "mesh"),
         "the mesh has two rows for hybrid, else one; pass it to fully_shard"),
    Fact("ranks that share the weights", entry("spread", "among"),
         "pass the mesh of these ranks to fully_shard"),
    Fact("", placements,
         "call `fully_shard(…)` on each unit, then on the network, before creating the optimizer"),
    Fact("", gathers, "check reshard_after_forward= and which units are prefetched"),
    Fact("the units gathered ahead", lambda rank: rank.facts["prefetch"],
         "in forward the blocks that follow; in backward the blocks before it, the nearest first"),
    Fact("type of the gathered weights", kinds("gathered_types"), "param_dtype of the policy"),
    Fact("type of the reduced gradients", kinds("reduced_types"), "reduce_dtype of the policy"),
    Fact("number of all-reduces in the forward pass", messages("forward"),
         "add up each MLP's parts once, over the ranks of its group"),
    Fact("number of all-reduces in the backward pass", messages("backward"),
         "each group adds up its gradients once per update"),
    Fact("memory in MiB kept for the backward pass", kept,
         "apply this to the blocks and in the runs that the config names", tolerance=NEARLY),
    Fact("", recomputed, "checkpoint each block that the config names, separately"),
    Fact("the pass of a pipeline stage", actions,
         "let the config choose stages and order: `pipelines.create_schedule(…)`", "pass"),
    Fact("call of torch.compile", lambda rank: distinct(rank.facts["compile"]),
         "if cfg.compile, compile the network once with mode=cfg.compile, before DDP and the loop"),
    Fact("number of layers in compiled graphs", lambda rank: rank.facts["compiled"],
         "compile all of the network or all of its blocks, and call what `torch.compile(…)` "
         "returns"),
    Fact("number of graph breaks", entry("compiled", "breaks"),
         "remove from the network what breaks the graph; torch._dynamo.explain shows the line"),
    Fact("list of traced steps", traced,
         "use profiling.schedule(cfg), and call profiler.step() at the end of every step"),
    Fact("skipping of the step with an overflow", overflow,
         "use one scaler for all steps: scaler.step(optimizer), then scaler.update()"),
    Fact("the state after the restart", restart,
         "save and load the state of every part, the random numbers last: "
         "`randomness.set_states(…)`"),
    Fact("number of calls of torch.save", saved,
         "rank 0 saves every cfg.save_every steps, and after SIGTERM"),
    Fact("list of remaining checkpoints", left,
         "write a draft, rename it once it is complete, and keep the last two"),
    Fact("fsync before the rename", renamed,
         "call `file.flush()` and `os.fsync(file.fileno())` on the draft, then rename it"),
    Fact("the newest checkpoint", state,
         "save the state of every part, the step and the random numbers"),
    Fact("loss", losses,
         "the forward pass or an earlier update differs: check the TODO's lines for this config",
         "step"),
    Fact("the trained weights", trained, "check what happens between backward and the update"),
    Fact("the validation", lambda rank: rank.epochs,
         "add up sums and counts over the ranks, then divide once", "epoch"),
    Fact("number of ranks that wrote weights.pt", writers,
         "let one rank write: `if run.rank == 0`"),
    Fact("weights.pt", weights,
         "save the network itself after the last epoch, not its wrapper"),
    Fact("the checkpoint", shared_checkpoint, "all ranks call `dcp.save(…)` on training_state(…)"),
)  # fmt: skip


def difference(seen: Any, due: Any, tolerance: float) -> tuple[list[Any], Any, Any] | None:
    """Return the first place where two values differ (keys and positions), and both values there.

    None where they are equal.
    """
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(seen, dict) and isinstance(due, dict):
        more = [] if isinstance(due, Contents) else [key for key in seen if key not in due]
        pairs = [(key, seen.get(key), due.get(key)) for key in [*due, *more]]
    elif isinstance(seen, list) and isinstance(due, list) and len(seen) == len(due):
        pairs = [(place, *pair) for place, pair in enumerate(zip(seen, due))]
    elif isinstance(seen, float) and isinstance(due, int | float):
        near = math.isclose(seen, due, rel_tol=tolerance, abs_tol=1e-7)
        return None if near or (math.isnan(seen) and math.isnan(due)) else ([], seen, due)
    else:
        return None if seen == due else ([], seen, due)
    for key, *pair in pairs:
        if found := difference(*pair, tolerance):
            path, *values = found
            return ([key, *path], *values)
    return None


def differences(run: Run, due: Run) -> Iterator[str]:
    """Yield where a script's small run differs from the solution's, causes before effects."""
    ranks = run.gpus
    pairs = [(Rank(run, rank), Rank(due, rank)) for rank in range(ranks)]
    for fact in FACTS:
        for own, other in pairs:
            tolerance = max(fact.tolerance, HALF if own.config.precision == "fp16" else 0)
            found = difference(fact.value(own), fact.value(other), tolerance)
            if found:
                path, *values = found
                yield _message(fact, path, *values, f", rank {own.rank}" * (ranks > 1))
                break


def _message(fact: Fact, path: list[Any], seen: Any, due: Any, place: str) -> str:
    if fact.unit and path and isinstance(path[0], int):
        place += f", {fact.unit} {path.pop(0)}"
    names = [key for key in reversed(path) if isinstance(key, str)]
    phrase = " of ".join(filter(None, [*names, fact.label]))
    return f"{place}: {phrase} is {in_words(seen)}, expected {in_words(due)}: {fact.hint}"


def in_words(value: Any) -> str:
    """Return a value as a message shows it, not too long."""
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None or value == [] or value == {}:
        return "missing"
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, dict | list) and len(value) > 8:
        return f"{len(value)} entries"
    if isinstance(value, dict):
        return ", ".join(f"{name}={in_words(each)}" for name, each in value.items())
    if isinstance(value, list):
        separator = " and " if isinstance(value[0], dict) else ", "
        return separator.join(map(in_words, value))
    return str(value)[:200]
