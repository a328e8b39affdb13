"""List the facts of a small run in which a learner's script must agree with the solution.

FACTS lists causes before effects, so that the first difference is the one to report.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from course.runs.files import read_dict
from course.runs.run import Run

CLOSE = 2e-5  # relative: two ways to write the same differ in the last bits
ROUGHLY = 1e-4  # the same for norms of gradients
HALF = 2e-3  # the same in fp16, where a different scale loses different small gradients
MOST = 0.5  # share of a network's weights that a rank holds only if it gathers all of them
NEARLY = 0.3  # of memory, which depends on how a script names its tensors


class Rank:
    """One rank's evidence, facts.json and steps; if the run failed (`error`), no evidence."""

    def __init__(self, run: Run, rank: int, error: str = "") -> None:
        self.run, self.rank, self.config, self.error = run, rank, run.config, error
        record = run.ranks[rank] if run.ranks and not error else {}
        self.evidence = None if error else record.get("evidence") or run.record.evidence
        self.epochs = record.get("epochs") or (run.record and run.record.epochs)
        self.weights_by = record.get("weights_by") or (run.record and run.record.weights_by)

    @cached_property
    def facts(self) -> dict[str, Any]:
        """The contents of facts-RANK.json; None for each entry that is missing."""
        return defaultdict(lambda: None, read_dict(self.run.folder / f"facts-{self.rank}.json"))

    @cached_property
    def files(self) -> dict[str, Any]:
        """The contents of files.json, which describes what the run saved."""
        return read_dict(self.run.folder / "files.json")

    @cached_property
    def steps(self) -> Any:
        """The table of this rank's steps; of a run that was killed, those of the last process."""
        table = self.run.rank_steps(self.rank)
        return table[table["step"] >= (self.get("began_at") or 0)] if len(table) else table

    @cached_property
    def sharing(self) -> list[Rank]:
        """All ranks that keep parts of one network; only this one if each keeps all of it."""
        is_split = self.config.tensor > 1 or self.config.pipeline or self.config.shard
        return self.peers if is_split else [self]

    @cached_property
    def peers(self) -> list[Rank]:
        """All ranks of the run."""
        return [Rank(self.run, rank, self.error) for rank in range(self.run.gpus)]

    def get(self, *names: str) -> Any:
        """Return an entry of the evidence; None if it is missing."""
        value: Any = self.evidence
        for name in names:
            value = (value or {}).get(name)
        return value


class Contents(dict):
    """Entries that a file must have, each with its place in words; it may have more."""


class Fact(NamedTuple):
    """A value that must equal the solution's: its name, how to read it, how to fix it."""

    label: str
    value: Callable[[Rank], Any]
    hint: str = ""
    unit: str = ""  # of a list's entries
    tolerance: float = CLOSE


def kinds(*names: str) -> Callable[[Rank], Any]:
    """Return a function that lists the kinds in an entry of the evidence, without their counts."""
    return lambda rank: ", ".join(sorted({*(rank.get(*names) or {})} - {"either"})) or None


def entry(*names: str) -> Callable[[Rank], Any]:
    """Return a function that reads an entry of the evidence."""
    return lambda rank: rank.get(*names)


def training_images(rank: Rank) -> list[dict[str, Any]]:
    """Return for each pass how the ranks share the training images, and their order."""
    passes, before = [], None
    for shares in zip(*(peer.facts["chosen"]["train"] for peer in rank.peers)):
        kind = "shuffled"
        if any(share == sorted(share) for share in shares):
            kind = "not shuffled"
        if before and any(share == last for share, last in zip(shares, before)):
            kind = "as in the epoch before"
        passes.append({**_shared("trains on", shares), "order of the training images": kind})
        before = shares
    return passes


def validation_images(rank: Rank) -> list[dict[str, Any]]:
    """Return for each epoch how the ranks share the validation images."""
    orders = [peer.facts["chosen"]["val"] for peer in rank.peers]
    return [
        _shared("validates", shares)
        | {"number of images of the rank that validates most": max(map(len, shares))}
        for shares in zip(*orders)
    ]


def _shared(does: str, shares: Sequence[list[int]]) -> dict[str, int]:
    counts = Counter(image for share in shares for image in share)
    return {
        f"number of images that more than one rank {does}": sum(n > 1 for n in counts.values()),
        f"number of images that a rank {does}": len(counts),
    }


def batches(rank: Rank) -> list[int]:
    """Return the number of images in each step."""
    return [images for images, *_ in rank.facts["batches"]]


def pixels(rank: Rank) -> list[dict[str, float]]:
    """Return the means of the pixels and of the labels in each step."""
    return [
        {"mean of the pixels": pixels, "mean of the labels": labels}
        for _, pixels, labels in rank.facts["batches"]
    ]


def loss_start(*names: str) -> Callable[[Rank], Any]:
    """Return a function that reads the factor by which backward scales the loss."""

    def read(rank: Rank) -> Any:
        factor = rank.get(*names, "loss_gradient")
        if factor is None or rank.config.pipeline:
            return None
        return "a scale" if rank.config.precision == "fp16" and factor > 1 else factor

    return read


def rescaled(rank: Rank) -> str | None:
    """Return how the scale of the loss in a later step compares with the first step's."""
    first, later = rank.get("loss_gradient"), rank.get("later", "loss_gradient")
    if rank.config.precision != "fp16" or rank.config.pipeline or not first or later is None:
        return None
    return "smaller than at first" if later < first else "the same as at first"


def passes(rank: Rank) -> Any:
    """Return the images of a step's micro-batches, and how much each image counts in the loss."""
    limit, pairs = rank.config.micro_batch, rank.get("passes") or []
    if not limit or rank.config.pipeline:
        return None
    return {
        "number of images": sum(size for size, _ in pairs),
        "size": "above cfg.micro_batch" if any(size > limit for size, _ in pairs) else "allowed",
        "number": len(pairs),
        "factor of the loss per image": distinct(
            [round(factor / size, 6) for size, factor in pairs]
        ),
    }


def kept(*names: str) -> Callable[[Rank], float | None]:
    """Return a function that reads the MiB kept for backward.

    It returns None for a pipeline, where they depend on its order, and for micro-batches, which may
    be copies or views of the batch.
    """

    def read(rank: Rank) -> float | None:
        is_split = rank.config.pipeline or rank.config.micro_batch
        return None if is_split else 1024 * (rank.get(*names, "kept_gib") or 0.0)

    return read


def recomputed(rank: Rank) -> dict[str, int]:
    """Return how often backward computed each operator of the forward pass."""
    counts = rank.get("recomputed") or {}
    return {f"number of {name} calls repeated in backward": n for name, n in counts.items()}


def repeated(rank: Rank) -> int | None:
    """Return the distance between blocks that backward computes again: 2 for every second one."""
    blocks = rank.facts["repeated"] or []
    return min((abs(block - other) for block, other in zip(blocks, blocks[1:])), default=None)


def sharding(name: str) -> Callable[[Rank], Any]:
    """Return a function that lists a property of fully_shard's calls, each value once."""
    return lambda rank: ", then ".join(distinct([str(x[name]) for x in rank.facts["shards"] or []]))


def gathers(rank: Rank) -> dict[str, str] | None:
    """Return how many all-gathers precede each stretch of computation, in each pass.

    With tensor parallelism, ranks may gather parts instead of adding them up.
    """
    if rank.config.tensor > 1:
        return None
    return {
        f"number of all-gathers before each computation in {phase}": " ".join(map(str, counts))
        for phase, counts in (rank.get("gathers") or {}).items()
    }


def held(rank: Rank) -> str | None:
    """Return how much of a sharded network a rank held while it was saved; None on the first."""
    size = rank.get("held_to_save")
    if rank.rank == 0 or size is None:
        return None
    return "all" if size > MOST * 4 * rank.get("parameters") else "one weight at a time"


def writers(rank: Rank) -> int:
    """Return how many ranks wrote weights.pt."""
    return sum(bool(row["weights_by"]) for row in rank.run.ranks) or len(rank.weights_by)


def weights(rank: Rank) -> Any:
    """Return the content of weights.pt; None if several ranks wrote it: the last one is random.

    Running statistics are left out if there are several ranks, because each has different ones.
    """
    state = rank.files["weights"]
    if writers(rank) > 1:
        return None
    if isinstance(state, dict) and len(rank.run.ranks) > 1:
        return {name: tensor for name, tensor in state.items() if "running_" not in name}
    return state


def loader(rank: Rank) -> dict[str, Any]:
    """Return the arguments of the training DataLoader, without one that dry_runs.loading checks."""
    return {name: x for name, x in (rank.get("loader") or {}).items() if name != "pin_memory"}


def settings(rank: Rank) -> list[dict[str, Any]]:
    """Return for each update the settings of filters and vectors; fp16 may skip updates."""
    updates = [
        {
            "filters": distinct([values for values, filters, _ in groups if filters]),
            "vectors": distinct([values for values, _, vectors in groups if vectors]),
        }
        for groups in rank.facts["groups"]
    ]
    return distinct(updates) if rank.config.precision == "fp16" else updates


def updated(rank: Rank) -> dict[str, int]:
    """Return how many filters and vectors the optimizers update, and how many weights they have."""
    groups = [group for peer in rank.sharing for group in [*peer.facts["groups"], []][0]]
    shapes = [shape for peer in rank.sharing for shape, *_ in peer.facts["weights"]]
    return {
        "number of filters that are updated": sum(filters for _, filters, _ in groups),
        "number of vectors that are updated": sum(vectors for *_, vectors in groups),
        "number of weights in the optimizers": sum(map(math.prod, shapes)),
    }


def distinct(values: list[Any]) -> list[Any]:
    """Return each value once, in the order of first appearance."""
    return [value for at, value in enumerate(values) if value not in values[:at]]


def updates(rank: Rank) -> Any:
    """Return the distinct numbers of updates per step; in fp16, which skips some, the largest."""
    counts = sorted(int(count) for count in rank.get("updates") or {})
    return counts[-1:] if rank.config.precision == "fp16" else counts


def traced(rank: Rank) -> list[str]:
    """Return which steps were traced, and whether completely."""
    steps = rank.get("traced") or {}
    return [f"step {step}" + ", in part" * (phases < 5) for step, phases in steps.items()]


def actions(rank: Rank) -> list[str]:
    """Return what a pipeline's stages did in the last step."""
    steps = rank.get("actions") or {}
    last = [*steps.values()][-1] if steps else []
    return [f"{kind} of micro-batch {batch} in stage {at}" for kind, at, batch, *_ in last]


def all_reduces(*names: str) -> Callable[[Rank], Any]:
    """Return a function that counts the sums over ranks in an entry of the evidence."""
    return lambda rank: rank.evidence and (rank.get(*names) or {}).get("allreduce", 0)


def synchronised(rank: Rank) -> dict[str, int] | None:
    """Return how often DDP averages gradients; None with tensor parallelism.

    Its ranks may add up their parts in other ways.
    """
    if rank.config.tensor > 1:
        return None
    counts = {"the backward pass": all_reduces("backward_collectives")(rank)}
    if rank.config.micro_batch:
        counts["a later step"] = all_reduces("later", "collectives")(rank)
    return {f"number of all-reduces in {where}": count for where, count in counts.items()}


def progress(rank: Rank) -> list[dict[str, float]] | None:
    """Return the loss of each step, and the norm of all gradients at the update.

    With a learning rate of 0 the norm does not count: the exercise `column_parallel` leaves
    gradients to `input_gradient`.
    """
    rows = []
    if rank.error:
        return None
    for number, loss in enumerate(rank.steps["loss"] if len(rank.steps) else ()):
        row = {"loss": loss}
        norms = [peer.facts["gradients"].get(str(number)) for peer in rank.sharing]
        if rank.config.lr and None not in norms:
            row["norm of the gradients"] = math.hypot(*norms)
        rows.append(row)
    return rows


def trained(rank: Rank) -> dict[str, Any]:
    """Return the sum and the length of the weights at the end.

    If ranks keep different parts of a network, the weights of all ranks count.
    """
    weights = [weight for peer in rank.sharing for weight in peer.facts["weights"]]
    return {
        "length": math.hypot(*(length for *_, length in weights)),
        "sum": sum(total for _, total, _ in weights),
    }


def started(rank: Rank) -> float | None:
    """Return the sum of the weights' norms at the first update of train.py."""
    if rank.config.script != "train.py":
        return None
    return (rank.facts["began"] or {}).get("norm of the weights")


def restart(rank: Rank) -> dict[str, Any]:
    """Return the state at the first step after a restart; {} without a restart."""
    if not rank.facts["is_restarted"]:
        return {}
    state = {"checksum of the random numbers": rank.facts["random"][0], **rank.facts["began"]}
    if rank.config.precision == "fp16":
        state["scaler's scale"] = rank.get("loss_gradient")
    return state


def saved(rank: Rank) -> int:
    """Return how often the rank called torch.save for checkpoints."""
    return rank.facts["saves"] if rank.config.save_every else 0


def left(rank: Rank) -> list[str] | None:
    """Return the remaining checkpoints; None on all ranks but the first."""
    files = rank.get("left")
    if rank.rank or files is None:
        return None
    return [f"step {file['step']}" + ", unreadable" * (not file["whole"]) for file in files]


def state(rank: Rank) -> Contents:
    """Return the content of the newest checkpoint."""
    return Contents({x: f"in the state of {part!r}" for x, part in rank.files["state"].items()})


def renamed(rank: Rank) -> str | None:
    """Return when checkpoints got their final names; None on a rank that saved none."""
    if not saved(rank):
        return None
    renamings = {*rank.facts["renamed"].values()}
    return next(iter(renamings - {"after fsync"} or renamings), "never")


GROUP = "pass group= to the collective: it must add up these ranks' parts, and no others"
FACTS: tuple[Fact, ...] = (
    Fact("first epoch", lambda rank: next(iter(rank.steps.get("epoch", [])), None),
         "a run that continues begins with the epoch that its checkpoint names"),
    Fact("process group", lambda rank: "one" if rank.get("group") else "none",
         "join one, `distributed.init_process_group(…)`, only if run.world_size > 1"),
    Fact("timeout of the group in seconds", entry("group", "timeout_s"),
         "timeout=timedelta(seconds=cfg.collective_timeout_s)"),
    Fact("first step after the restart", entry("began_at")),
    Fact("", lambda rank: rank.facts["settings"],
         "leave PyTorch's settings as main makes them: cfg.precision selects TF32"),
    Fact("number of steps", lambda rank: len(rank.steps), "do every step once"),
    Fact("number of images", batches,
         "cfg.batch_size is for all ranks; ranks with parts of one copy get the same", "step"),
    Fact("", training_images,
         "ranks share one order, so the sampler has the same seed on all of them, and all call "
         "sampler.set_epoch(epoch)", "epoch"),
    Fact("seed of the sampler", lambda rank: rank.facts["sampler_seed"],
         "seed=cfg.seed, so that runs with different seeds have different orders"),
    Fact("order of the images", entry("taken"),
         "give the loader your sampler, and call sampler.set_epoch(epoch)", "epoch"),
    Fact("", validation_images,
         "the ranks split the validation images evenly, and each image is validated once", "epoch"),
    Fact("the training DataLoader", loader, "use the config's value"),
    Fact("network that the optimizer updates",
         lambda rank: rank.config.script == "train.py"
         and ("the original one" if rank.facts["decay"] else "another one"),
         "train the network that is validated and saved: wrap it, and don't copy it"),
    Fact("the batch", pixels,
         "train on the same images: draw no other random numbers before them", "step"),
    Fact("number of updates per step", updates, "update once per batch"),
    Fact("list of the policy's types, param_dtype and reduce_dtype,", sharding("types"),
         "with cfg.gather_bf16 set both: by default, PyTorch before 2.15 reduces in param_dtype"),
    Fact("type of the forward pass", kinds("forward_types"),
         "enter `torch.autocast(…)` with dtype= and enabled= that follow cfg.precision"),
    Fact("", lambda rank: rank.facts["autocast"],
         "with cfg.gather_bf16 the policy replaces autocast: `nullcontext(…)` instead, also in "
         "validation"),
    Fact("type of a later forward pass", kinds("later", "forward_types"),
         "enter autocast in every step"),
    Fact("type of the validation's forward pass", kinds("validation", "forward_types"),
         "pass autocast to validate"),
    Fact("type of the loss", kinds("loss_types"),
         "compute the loss under autocast, or from scores.float()"),
    Fact("autocast in the backward pass", entry("autocast_in_backward"),
         "leave autocast before backward"),
    Fact("source of BatchNorm's statistics in training", kinds("statistics"),
         "call model.train() at the start of each epoch"),
    Fact("source of BatchNorm's statistics in validation", kinds("validation", "statistics"),
         "call model.eval() before validation"),
    Fact("layout of the convolutions' inputs", kinds("input_layouts"),
         "images = images.to(memory_format=torch.channels_last) if cfg.channels_last; .to returns "
         "a new tensor"),
    Fact("layout of the images", lambda rank: rank.facts["layouts"],
         "convert the images in every step", "step"),
    Fact("layout of the weights", kinds("weight_layouts"),
         "model = model.to(memory_format=torch.channels_last) if cfg.channels_last"),
    Fact("the micro-batches", passes,
         "split images and labels, and multiply each loss by `len(targets) / len(labels)`"),
    Fact("factor of the loss at the start of backward", loss_start(),
         "multiply the loss only by the scaler's scale, in fp16 (on Day 4 also by a micro-batch's "
         "share of the batch); DDP itself averages over the ranks"),
    Fact("factor of the loss in a later step", loss_start("later"),
         "call scaler.scale(loss).backward() in every step"),
    Fact("scale of the loss after an overflow", rescaled,
         "the scaler halves it: create one scaler before the loop, and call scaler.update() after "
         "each scaler.step(optimizer)"),
    Fact("number of wrappers of DDP", lambda rank: len(rank.facts["ddp_devices"]),
         "if run.world_size > 1, wrap the network once, before the loop"),
    Fact("device_ids of DDP", lambda rank: rank.facts["ddp_devices"],
         "device_ids=[run.local_rank], or leave it out"),
    Fact("DDP", entry("ddp"),
         "DDP(…, bucket_cap_mb=cfg.bucket_mb, find_unused_parameters=cfg.find_unused)"),
    Fact("number of process groups of fully_shard's meshes",
         lambda rank: len({x for call in rank.facts["shards"] or [] for x in call["groups"]}) or 1,
         "create one mesh for all units: each new one has process groups, and so buffers, of its "
         "own"),
    Fact("mesh of the optimizer's weights", entry("spread", "mesh"),
         "call `optimizers.create(…)` after fully_shard, which replaces the weights"),
    Fact("", lambda rank: rank.facts["prefetch"],
         "in forward these are the next cfg.prefetch units; in backward those before it, the "
         "nearest first"),
    Fact("", gathers, "check reshard_after_forward= and which units are prefetched"),
    Fact("", synchronised,
         "each group of ranks adds up its gradients once per update, in the last backward pass"),
    Fact("distance between blocks that backward computes again", repeated,
         "replace block.forward of each block that cfg.checkpointing names; in a loop, a lambda "
         "calls the last block's"),
    Fact("", updated,
         "give every weight to the optimizer once, on the rank that keeps it, and let backward "
         "reach all of them"),
    Fact("the optimizer", settings,
         "use the config's settings for all filters and all vectors (BatchNorm, biases); a "
         "schedule changes the rate of every group after each update", "update"),
    Fact("", recomputed,
         "checkpoint each block that `models.blocks(…)` returns and the config names, separately, "
         "with use_reentrant=False, which repeats only what backward needs"),
    Fact("memory in MiB kept for the backward pass", kept(),
         "checkpoint or offload exactly the blocks that the config names, and only in the runs "
         "that it names", tolerance=NEARLY),
    Fact("memory in MiB kept for the backward pass of a later step", kept("later"),
         "checkpoint or offload in every step", tolerance=NEARLY),
    Fact("the pass of a pipeline stage", actions, "F is forward; B, I and W, backward", "pass"),
    Fact("call of torch.compile", lambda rank: distinct(rank.facts["compile"]),
         "if cfg.compile, compile the network once with mode=cfg.compile, before DDP and the loop; "
         "in train_sharded.py each block"),
    Fact("number of layers in compiled graphs", lambda rank: rank.facts["compiled"],
         "compile all of the network or all of its blocks, and call what `torch.compile(…)` "
         "returns"),
    Fact("list of the steps that use a new graph", lambda rank: distinct(rank.facts["graphs"]),
         "compile in the first step only: create what is compiled once, and keep the compiler's "
         "cache, which `torch.compiler.reset()` clears"),
    Fact("number of graph breaks", entry("compiled", "breaks"),
         "remove from the network what breaks the graph; torch._dynamo.explain shows the line"),
    Fact("list of traced steps", traced,
         "use profiling.schedule(cfg), and call profiler.step() at the end of every step"),
    Fact("the written trace", lambda rank: rank.facts["traces"] if rank.rank == 0 else None,
         "on_trace_ready=run.save_trace and record_shapes=True", "trace"),
    Fact("skipping of the step with an overflow", entry("overflow", "skipped"),
         "use one scaler for all steps: scaler.step(optimizer), then scaler.update()"),
    Fact("the state after the restart", restart),
    Fact("number of calls of torch.save", saved,
         "rank 0 saves every cfg.save_every steps, and after SIGTERM"),
    Fact("renaming of a draft", renamed,
         "write a draft into the same folder, because only on one file system a rename is atomic; "
         "call file.flush() and os.fsync(file.fileno()), and then `draft.replace(…)`"),
    Fact("list of remaining checkpoints", left, "keep the last two, `checkpoint.remove_old(…)`"),
    Fact("the newest checkpoint", state,
         "save the state of every part, the step and the random numbers"),
    Fact("length of the weights at the first update", started,
         "draw no random numbers before `models.create(…)`, and keep the weights and their type"),
    Fact("training", progress,
         "a loss depends on the forward pass and on the updates before it; gradients also depend "
         "on averaging, unscaling and clipping between backward and the update", "step", ROUGHLY),
    Fact("the trained weights", trained, "check what happens between backward and the update"),
    Fact("the validation", lambda rank: rank.epochs,
         "add up sums and counts over the ranks, then divide once", "epoch"),
    Fact("part of the network that this rank held to save it", held,
         "use full_state_dict=True and cpu_offload=True, so that only rank 0 keeps all weights"),
    Fact("number of ranks that wrote weights.pt", writers,
         "let one rank write: `if run.rank == 0`"),
    Fact("weights.pt", weights,
         "after the last epoch, save the network itself (in train.py, what `averaged.validated()` "
         "returns): neither its wrapper nor one rank's shards"),
    Fact("the checkpoint", lambda rank: rank.files["checkpoint"],
         "all ranks call `dcp.save(…)` on training_state(…), weights and the optimizer's state"),
)  # fmt: skip


def describe(run: Run, shows: dict[str, str]) -> str:
    """Return evidence of a run's last rank in words; entries that it lacks are left out."""
    rank = Rank(run, run.gpus - 1)
    values = {words: rank.get(*path.split(".")) for words, path in shows.items()}
    shown = {words: in_words(x, most=64, digits=3) for words, x in values.items() if x is not None}
    return "; ".join(f"{words}: {text}" for words, text in shown.items())


def difference(value: Any, expected: Any, tolerance: float) -> tuple[list[Any], Any, Any] | None:
    """Return the first place where two values differ (keys and positions), and both values there.

    None if they are equal.
    """
    pairs: list[tuple[Any, Any, Any]] = []
    if isinstance(value, dict) and isinstance(expected, dict):
        if isinstance(expected, Contents):  # which part of a file has an entry does not matter
            value = {key: place for key, place in expected.items() if key in value}
        pairs = [(key, value.get(key), expected.get(key)) for key in {**expected, **value}]
    elif isinstance(value, list) and isinstance(expected, list) and len(value) == len(expected):
        pairs = [(place, *pair) for place, pair in enumerate(zip(value, expected))]
    elif isinstance(value, float) and isinstance(expected, int | float):
        near = math.isclose(value, expected, rel_tol=tolerance, abs_tol=1e-7)
        return (
            None if near or (math.isnan(value) and math.isnan(expected)) else ([], value, expected)
        )
    else:
        return None if value == expected else ([], value, expected)
    for key, *pair in pairs:
        if inner := difference(*pair, tolerance):
            path, *values = inner
            return ([key, *path], *values)
    return None


def differences(facts: Sequence[Fact], run: Run, expected: Run, error: str = "") -> Iterator[str]:
    """Yield how a small run differs from the solution's; if it failed, without missing facts."""
    numbers = range(run.gpus)
    pairs = [(Rank(run, number, error), Rank(expected, number)) for number in numbers]
    for fact in facts:
        for rank, reference in pairs:
            tolerance = max(fact.tolerance, HALF if rank.config.precision == "fp16" else 0)
            value = fact.value(rank)
            if error and value is None:
                continue
            if place := difference(value, fact.value(reference), tolerance):
                yield _message(fact, *place, f", rank {rank.rank}" * (len(pairs) > 1))
                break


def _message(fact: Fact, path: list[Any], value: Any, expected: Any, place: str) -> str:
    if fact.unit and path and isinstance(path[0], int):
        place += f", {fact.unit} {path.pop(0)}"
    names = [key for key in reversed(path) if isinstance(key, str)]
    phrase = " of ".join(filter(None, [*names, fact.label]))
    if path and isinstance(path[-1], int):
        phrase += f", place {path[-1]}"
    hint = f": {fact.hint}" if fact.hint else ""
    return f"{place}: {phrase} is {in_words(value)}, expected {in_words(expected)}{hint}"


def in_words(value: Any, most: int = 8, digits: int = 6) -> str:
    """Return a value as text for a message, shortened if it has more than `most` entries.

    Args:
        digits: of a number with decimals.
    """
    if isinstance(value, bool):
        return "on" if value else "off"
    if value is None:
        return "missing"
    if value in ([], {}, ""):
        return "none"
    if isinstance(value, float):
        return f"{value:.{digits}g}"
    if isinstance(value, dict | list) and len(value) > most:
        return f"{len(value)} entries"
    if isinstance(value, dict):
        return ", ".join(f"{name}={in_words(item, most, digits)}" for name, item in value.items())
    if isinstance(value, list) and len(value) > 12 and all(isinstance(item, int) for item in value):
        first, last = ", ".join(map(str, value[:3])), value[-1]
        return f"{first}, …, {last} ({len(value)} numbers)"
    if isinstance(value, list):
        separator = " and " if isinstance(value[0], dict | list) else ", "
        return separator.join(in_words(item, most, digits) for item in value)
    return str(value)[:200]
