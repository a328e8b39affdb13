"""Lab 4.1: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from course.checks.lab import SYNTHETIC, Lab, Mechanism, Recording
from course.config import Config, rung
from course.runs.run import Run
from labs.day2_2_data_parallel.lab import SAME_LOSS
from labs.day4_2_fsdp.rank_checks import EQUAL, SMALL_VIT_SETTINGS

# A transformer has no BatchNorm, so that micro-batches have exactly the losses of the full batch.
# Ten images make micro-batches of three; the last has one image.
WHOLE = SMALL_VIT_SETTINGS | {"batch_size": 10}

SMALLER = 0.45  # of what was kept for backward: every second block keeps more than half


def _passes(run: Run) -> list[tuple[int, float]]:
    """Of the first step's passes: images, and what each began backward with."""
    return [(images, start) for images, start in run.record.evidence.get("passes", [])]


def _accumulated_faults(run: Run, against: Run) -> Iterator[str]:
    passes, cfg = _passes(run), run.config
    share = cfg.batch_size // run.record.gpus
    images = sum(count for count, _ in passes)
    largest = max((count for count, _ in passes), default=0)
    if largest > cfg.micro_batch:
        yield (
            f"{largest} images went through the network at once, and cfg.micro_batch is "
            f"{cfg.micro_batch}: `images.split(…)`, and labels likewise"
        )
    elif images != share:
        yield f"the micro-batches of a step have {images} images, and its batch {share}"
    elif not math.isclose(total := sum(start for _, start in passes), 1, rel_tol=1e-3):
        yield (
            f"the micro-batches' losses count {total:.3g} in all, so the gradients are "
            f"{total:.3g} times those of the batch: each counts by its share of the images"
        )
    elif wrong := [
        (count, start)
        for count, start in passes
        if not math.isclose(start, count / share, rel_tol=1e-3)
    ]:
        count, start = wrong[-1]
        yield (
            f"a micro-batch of {count} in {share} images counts {start:.3g} in all, and "
            f"{count / share:.3g} is its share: a mean of means is the mean only where all are of "
            f"one size. `* len(targets) / len(labels)`"
        )


def _accumulated_seen(run: Run) -> str:
    sizes = " + ".join(str(images) for images, _ in _passes(run))
    return f"{sizes} images a step, each counted alike; one update; the losses of the whole batch"


def _silent_faults(run: Run, against: Run) -> Iterator[str]:
    seen = [rank["evidence"] for rank in run.ranks]
    passes = len(_passes(run))
    sent = seen[0].get("collectives", {}).get("allreduce", 0)
    if passes < 2:
        yield "the batch was not split, so there is nothing to be silent about: TODO 17 first"
    elif not sent:
        yield "no gradient was sent at all: the last micro-batch of a step must not be silent"
    elif sent > 1:
        yield (
            f"in the first step, whose gradients go as one message, {sent} were sent for "
            f"{passes} micro-batches: `model.no_sync(…)` around the forward pass of all but the "
            f"last"
        )
    elif len({each["weights_sum"] for each in seen}) > 1:
        yield (
            "at the end the ranks have different weights: a message before the last micro-batch "
            "leaves out what comes after it"
        )


def _silent_seen(run: Run) -> str:
    return (
        f"{len(_passes(run))} micro-batches and one message in the first step; equal weights at "
        f"the end"
    )


def _kept(run: Run) -> float:
    return run.record.evidence.get("kept_gib", 0.0)


def _kept_faults(run: Run, against: Run, what: str) -> Iterator[str]:
    if not _kept(against):
        yield f"the step before left nothing there either: {what} only where the config asks for it"
    elif (share := _kept(run) / _kept(against)) > SMALLER:
        yield f"forward left as much for backward as before ({share:.0%} of it): {what} is not used"


def _checkpointed_faults(run: Run, against: Run) -> Iterator[str]:
    yield from _kept_faults(run, against, "checkpointing")
    again, before = (each.record.evidence.get("recomputed", {}) for each in (run, against))
    if "convolution" in again:
        yield (
            "the first convolution was computed again, which belongs to no block: where all of "
            "the network is one piece, all activations are back at once. Checkpoint each block"
        )
    if not sum(again.values()) > sum(before.values()):
        yield "less was kept, and nothing computed again: what backward needed, it cannot have had"


def _checkpointed_seen(run: Run) -> str:
    again = sum(run.record.evidence["recomputed"].values())
    return (
        f"{_kept(run) * 1024:.1f} MiB kept for backward; {again} convolutions and products "
        f"computed again in it"
    )


def _offloaded_faults(run: Run, against: Run) -> Iterator[str]:
    yield from _kept_faults(run, against, "save_on_cpu")


def _offloaded_seen(run: Run) -> str:
    return f"{_kept(run) * 1024:.1f} MiB kept on the device for backward; the rest on the host"


# CoAtNet-3, 167 million weights, at full size on one GPU.
RECORDED: dict[str, Any] = SYNTHETIC | {
    "model": "coatnet_3_224",
    "fused": True,
    "batch_size": 128,
    "steps": 24,
    "warmup_steps": 8,
}
CHECKPOINTING = ("every", "second", "selective")


def memory_config(batch_size: int = 128, **settings: Any) -> Config:
    """Return the config of CoAtNet-3 with a memory strategy, which its label names."""
    words = [f"{field}-{value}" for field, value in settings.items()] or ["plain"]
    short = {"steps": 10, "warmup_steps": 4} if settings.get("offload") else {}
    name = "-".join([*words, str(batch_size)])
    return rung("large", **RECORDED | short | settings | {"batch_size": batch_size, "rung": name})


def _memory_configs() -> Iterator[Config]:
    """Yield all recorded strategies, with all memory and on a GPU of 40 GiB."""
    yield memory_config()
    yield from (memory_config(micro_batch=images) for images in (64, 32, 16, 8, 4))
    yield from (memory_config(checkpointing=blocks) for blocks in CHECKPOINTING)
    yield memory_config(offload=True)
    yield from (memory_config(checkpointing="every", micro_batch=images) for images in (64, 32, 16))
    yield memory_config(checkpointing="selective", micro_batch=64)
    yield memory_config(checkpointing="every", offload=True)
    yield memory_config(96)
    limit: dict[str, Any] = {"memory_gib": 40}
    yield memory_config(**limit)
    yield memory_config(112, **limit)  # as many images as fit in one pass
    yield memory_config(256, micro_batch=64, **limit)
    # Up to 216 images, each tensor has fewer than 2^31 numbers; above, kernels count in 64 bits.
    yield from (memory_config(216, checkpointing=blocks, **limit) for blocks in CHECKPOINTING)
    yield memory_config(232, checkpointing="every", **limit)


CHECKS = {
    "day4.accumulate": Mechanism(
        title="a batch in parts trains like the whole",
        todo=17,
        rung="accumulated",
        against="large",
        seen=_accumulated_seen,
        word="micro_batch",
        faults=_accumulated_faults,
        changes={"micro_batch": 3},
        settings=WHOLE,
        tolerance=EQUAL,
        timed=False,
    ),
    "day4.silent": Mechanism(
        title="ranks speak once an update",
        todo=18,
        rung="accumulated",
        against="large",
        seen=_silent_seen,
        word="DDP",
        faults=_silent_faults,
        changes={"micro_batch": 3},
        settings=WHOLE,
        gpus=2,
        tolerance=SAME_LOSS,
        timed=False,
    ),
    "day4.recompute": Mechanism(
        title="blocks compute their inside again instead of keeping it",
        todo=19,
        rung="checkpointed",
        against="large",
        seen=_checkpointed_seen,
        word="models.create",
        faults=_checkpointed_faults,
        settings=WHOLE,
        tolerance=EQUAL,
        timed=False,
    ),
    "day4.offload": Mechanism(
        title="what backward needs waits on the host",
        todo=20,
        rung="offloaded",
        against="large",
        seen=_offloaded_seen,
        word="kept =",
        faults=_offloaded_faults,
        settings=WHOLE,
        tolerance=EQUAL,
        timed=False,
    ),
}

LAB = Lab(
    number="4.1",
    title="memory against time",
    minutes=60,
    checks=CHECKS,
    recordings=(Recording("memory", [*_memory_configs()]),),
    jobs="6, of 10 runs, one of 2 processes",
    prepare="nothing",
    stuck="the last micro-batch is smaller; the network itself is checkpointed, before DDP",
)
