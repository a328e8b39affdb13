"""List the facts of a small run in which a learner's script must agree with the solution.

Causes come before effects, so that the first difference is the one to report: SETUP, then the facts
that labs add about their mechanisms, then RESULTS.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import is_dataclass
from functools import cached_property
from typing import Any, NamedTuple

from course.checks.notes import Files, Notes
from course.runs.evidence import (
    NOT_APPLICABLE,
    Evidence,
    NotApplicable,
    check_path,
    from_values,
    value_at,
)
from course.runs.run import Run

CLOSE = 2e-5  # relative: two ways to write the same differ in the last bits
ROUGHLY = 1e-4  # the same for norms of gradients
HALF = 2e-3  # the same in fp16, where a different scale loses different small gradients


class Missing(Exception):
    """A run that failed has no evidence."""


class Rank:
    """One rank's evidence, notes and steps; if the run failed (`error`), only its notes."""

    def __init__(self, run: Run, rank: int, error: str = "") -> None:
        self.run, self.rank, self.config, self.error = run, rank, run.config, error

    @cached_property
    def evidence(self) -> Evidence:
        """Raises Missing if the run failed."""
        if self.error:
            raise Missing
        return self.run.evidence(self.rank)

    @cached_property
    def notes(self) -> Notes:
        """Raises Missing if the run failed before its first step."""
        path = self.run.folder / f"notes-{self.rank}.json"
        if self.error and not path.exists():
            raise Missing
        return from_values(Notes, json.loads(path.read_text()))

    @cached_property
    def files(self) -> Files:
        """Raises Missing if the run failed before it could save anything."""
        path = self.run.folder / "files.json"
        if self.error and not path.exists():
            raise Missing
        return from_values(Files, json.loads(path.read_text()))

    @cached_property
    def report(self) -> dict[str, Any]:
        """What the rank recorded; of a run of one process, its record."""
        if self.error or not self.run.record:
            raise Missing
        return self.run.ranks[self.rank] if self.run.ranks else vars(self.run.record)

    @cached_property
    def steps(self) -> Any:
        """The table of this rank's steps; of a run that was killed, those of the last process."""
        table = self.run.rank_steps(self.rank)
        if self.error or not len(table):
            return table
        began_at = self.evidence.began_at
        return table if began_at is NOT_APPLICABLE else table[table["step"] >= began_at]

    @cached_property
    def sharing(self) -> list[Rank]:
        """All ranks that keep parts of one network; only this one if each keeps all of it."""
        is_split = self.config.tensor > 1 or self.config.pipeline or self.config.shard
        return self.peers if is_split else [self]

    @cached_property
    def peers(self) -> list[Rank]:
        """All ranks of the run."""
        return [Rank(self.run, rank, self.error) for rank in range(self.run.gpus)]


class Contents(dict):
    """Entries that a file must have, each with its place in words; it may have more."""


class Fact(NamedTuple):
    """A value that must equal the solution's: its name, how to read it, how to fix it.

    Only NOT_APPLICABLE means that there is nothing to compare: None is an error.
    """

    label: str
    value: Callable[[Rank], Any]
    hint: str = ""
    unit: str = ""  # of a list's entries
    tolerance: float = CLOSE


def if_complete(value: Callable[[Rank], Any]) -> Callable[[Rank], Any]:
    """Return a function that reads a value only of runs that did not fail."""

    def read(rank: Rank) -> Any:
        if rank.error:
            raise Missing
        return value(rank)

    return read


def entry(path: str) -> Callable[[Rank], Any]:
    """Return a function that reads the evidence at a path, such as "later.forward_types"."""
    check_path(path)
    return lambda rank: value_at(rank.evidence, path)


def kinds(path: str) -> Callable[[Rank], Any]:
    """Return a function that lists the kinds that are counted at a path."""
    read = entry(path)

    def listed(rank: Rank) -> str | NotApplicable:
        counts = read(rank)
        names = set() if counts is NOT_APPLICABLE else {*counts} - {"either"}
        return ", ".join(sorted(names)) or NOT_APPLICABLE

    return listed


def training_images(rank: Rank) -> list[dict[str, Any]]:
    """Return for each pass how the ranks share the training images, and their order."""
    passes, before = [], None
    for shares in zip(*(peer.notes.chosen_train for peer in rank.peers)):
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
    orders = [peer.notes.chosen_val for peer in rank.peers]
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
    return [images for images, *_ in rank.notes.batches]


def pixels(rank: Rank) -> list[dict[str, float]]:
    """Return the means of the pixels and of the labels in each step."""
    return [
        {"mean of the pixels": pixels, "mean of the labels": labels}
        for _, pixels, labels in rank.notes.batches
    ]


def writers(rank: Rank) -> int:
    """Return how many ranks wrote weights.pt."""
    reports = [peer.report for peer in rank.peers] if rank.run.ranks else [rank.report]
    return sum(bool(report["weights_by"]) for report in reports)


def weights(rank: Rank) -> Any:
    """Return the content of weights.pt, unless several ranks wrote it: the last one is random.

    Running statistics are left out if there are several ranks, because each has different ones.
    """
    state = rank.files.weights
    if writers(rank) > 1:
        return NOT_APPLICABLE
    if isinstance(state, dict) and len(rank.run.ranks) > 1:
        return {name: tensor for name, tensor in state.items() if "running_" not in name}
    return state


def settings(rank: Rank) -> list[dict[str, Any]]:
    """Return for each update the settings of filters and vectors; fp16 may skip updates."""
    updates = [
        {
            "filters": distinct([values for values, filters, _ in groups if filters]),
            "vectors": distinct([values for values, _, vectors in groups if vectors]),
        }
        for groups in rank.notes.groups
    ]
    return distinct(updates) if rank.config.precision == "fp16" else updates


def updated(rank: Rank) -> dict[str, int]:
    """Return how many filters and vectors the optimizers update, and how many weights they have."""
    groups = [group for peer in rank.sharing for group in [*peer.notes.groups, []][0]]
    shapes = [shape for peer in rank.sharing for shape, *_ in peer.notes.weights]
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
    counts = sorted(int(count) for count in rank.evidence.updates)
    return counts[-1:] if rank.config.precision == "fp16" else counts


def all_reduces(path: str) -> Callable[[Rank], Any]:
    """Return a function that reads the number of all-reduces from the counts at a path."""
    counts_of = entry(path)

    def read(rank: Rank) -> int | NotApplicable:
        counts = counts_of(rank)
        return counts if counts is NOT_APPLICABLE else counts.get("allreduce", 0)

    return read


@if_complete
def progress(rank: Rank) -> list[dict[str, float]]:
    """Return the loss of each step, and the norm of all gradients at the update.

    With a learning rate of 0 the norm does not count: the exercise `column_parallel` leaves
    gradients to `input_gradient`.
    """
    rows = []
    for number, loss in enumerate(rank.steps["loss"] if len(rank.steps) else ()):
        row = {"loss": loss}
        norms = [peer.notes.gradients.get(str(number)) for peer in rank.sharing]
        if rank.config.lr and None not in norms:
            row["norm of the gradients"] = math.hypot(*norms)
        rows.append(row)
    return rows


def trained(rank: Rank) -> dict[str, Any]:
    """Return the sum and the length of the weights at the end.

    If ranks keep different parts of a network, the weights of all ranks count.
    """
    weights = [weight for peer in rank.sharing for weight in peer.notes.weights]
    return {
        "length": math.hypot(*(length for *_, length in weights)),
        "sum": sum(total for _, total, _ in weights),
    }


def started(rank: Rank) -> float | NotApplicable:
    """Return the sum of the weights' norms at the first update of train.py."""
    if rank.config.script != "train.py" or rank.notes.began is NOT_APPLICABLE:
        return NOT_APPLICABLE
    return rank.notes.began["norm of the weights"]


SETUP: tuple[Fact, ...] = (
    Fact("first epoch", lambda rank: next(iter(rank.steps.get("epoch", [])), NOT_APPLICABLE),
         "a run that continues begins with the epoch that its checkpoint names"),
    Fact("", lambda rank: rank.notes.settings,
         "leave PyTorch's settings as main makes them: cfg.precision selects TF32"),
    Fact("number of steps", lambda rank: len(rank.steps), "do every step once"),
    Fact("number of images", batches,
         "cfg.batch_size is for all ranks; ranks with parts of one copy get the same", "step"),
    Fact("", training_images,
         "ranks share one order, so the sampler has the same seed on all of them, and all call "
         "sampler.set_epoch(epoch)", "epoch"),
    Fact("seed of the sampler", lambda rank: rank.notes.sampler_seed,
         "seed=cfg.seed, so that runs with different seeds have different orders"),
    Fact("order of the images", entry("taken"),
         "give the loader your sampler, and call sampler.set_epoch(epoch)", "epoch"),
    Fact("", validation_images,
         "the ranks split the validation images evenly, and each image is validated once", "epoch"),
    Fact("network that the optimizer updates",
         lambda rank: rank.config.script == "train.py"
         and ("another one" if rank.notes.decay in ({}, NOT_APPLICABLE) else "the original one"),
         "train the network that is validated and saved: wrap it, and don't copy it"),
    Fact("number of updates per step", updates, "update once per batch"),
)  # fmt: skip
RESULTS: tuple[Fact, ...] = (
    Fact("the batch", pixels,
         "train on the same images: draw no other random numbers before them", "step"),
    Fact("source of BatchNorm's statistics in training", kinds("statistics"),
         "call model.train() at the start of each epoch"),
    Fact("source of BatchNorm's statistics in validation", kinds("validation.statistics"),
         "call model.eval() before validation"),
    Fact("", updated,
         "give every weight to the optimizer once, on the rank that keeps it, and let backward "
         "reach all of them"),
    Fact("the optimizer", settings,
         "use the config's settings for all filters and all vectors (BatchNorm, biases); a "
         "schedule changes the rate of every group after each update", "update"),
    Fact("length of the weights at the first update", started,
         "draw no random numbers before `models.create(…)`, and keep the weights and their type"),
    Fact("training", progress,
         "a loss depends on the forward pass and on the updates before it; gradients also depend "
         "on averaging, unscaling and clipping between backward and the update", "step", ROUGHLY),
    Fact("the trained weights", trained, "check what happens between backward and the update"),
    Fact("the validation", lambda rank: rank.report["epochs"],
         "add up sums and counts over the ranks, then divide once; in train.py, `net` has no DDP "
         "around it", "epoch"),
    Fact("number of ranks that wrote weights.pt", writers,
         "let one rank write: `if run.rank == 0`; run.local_rank is a number on one node"),
    Fact("weights.pt", weights,
         "after the last epoch, save the network itself (in train.py, what `averaged.validated()` "
         "returns): neither its wrapper nor one rank's shards"),
)  # fmt: skip


def incompleteness(evidence: Evidence) -> str:
    """Return why a run's evidence is incomplete, so that nothing can be concluded from it."""
    reasons = evidence.problems
    if not (reasons or evidence.is_complete):
        reasons = ["the run did not record the end of its last step"]
    return f"the run's evidence is incomplete: {'; '.join(reasons)}" if reasons else ""


def describe(run: Run, shows: dict[str, str]) -> str:
    """Return evidence of a run's last rank in words; entries that it lacks are left out."""
    evidence = run.evidence(run.gpus - 1)
    values = {words: value_at(evidence, path) for words, path in shows.items()}
    applicable = {words: x for words, x in values.items() if x is not NOT_APPLICABLE}
    shown = {words: in_words(x, most=64, digits=3) for words, x in applicable.items()}
    return "; ".join(f"{words}: {text}" for words, text in shown.items())


def difference(value: Any, expected: Any, tolerance: float) -> tuple[list[Any], Any, Any] | None:
    """Return the first place where two values differ (keys and positions), and both values there.

    None if they are equal.
    """
    pairs: list[tuple[Any, Any, Any]] = []
    value, expected = (vars(x) if is_dataclass(x) else x for x in (value, expected))
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
            try:
                values = fact.value(rank), fact.value(reference)
            except Missing:
                continue
            if error and values[0] is NOT_APPLICABLE:  # the script failed before
                continue
            if None in values:
                raise TypeError(f"{fact} gives None: NOT_APPLICABLE means nothing to compare")
            if place := difference(*values, tolerance):
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
    if value is None or value is NOT_APPLICABLE:
        return "missing"
    if is_dataclass(value):
        value = {name: x for name, x in vars(value).items() if x is not NOT_APPLICABLE}
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
    return f"{value:,}" if isinstance(value, int) and value >= 1e6 else str(value)[:200]
