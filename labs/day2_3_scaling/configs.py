"""What is recorded on several GPUs: how rungs scale, what ranks send, how files feed them.

A node of eight is lent for minutes: its plan is short, and what would be missed most comes first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from course.checks.lab import FULL_SIZE
from course.config import Config, rung, vary
from course.runs.recordings import SETUP

PINNED_WORKERS = {"persistent_workers": True, "pin_memory": True, "non_blocking": True}
FASTEST = ("channels_last", "compile", "algebra")  # beside the first, the fastest rungs there are
EACH = SETUP["batch_size"]  # images of a GPU and step
DECODED = "-gpu_decode"  # behind a rung's name: fed from files that the GPUs decode
TRACED = "-traced"
# Workers read files and decode none: on one GPU four were as good as fifteen. Each makes two
# batches ahead, and a thread decodes four more: warm-up is longer than they last.
FROM_FILES: dict[str, Any] = PINNED_WORKERS | {
    "data": "default",
    "format": "gpu_decode",
    "workers": 4,
    "epochs": 1,
    "steps": 80,
    "warmup_steps": 20,
    "val_steps": 0,
}
Runs = Iterator[tuple[Config, int]]


def counts(gpus: int) -> list[int]:
    """How many GPUs take part, from one to all: each time twice as many."""
    return sorted({*(2**power for power in range(gpus.bit_length()) if 2**power < gpus), gpus})


def fastest(gpus: int) -> Runs:
    """The fastest rungs on synthetic images."""
    yield from _by_importance(gpus, FULL_SIZE)


def from_files(gpus: int) -> Runs:
    """The same, fed from JPEG files that each GPU decodes."""
    yield from _by_importance(gpus, FROM_FILES, DECODED)


def _by_importance(gpus: int, sizes: dict[str, Any], behind: str = "") -> Runs:
    """All GPUs and one tell what all bring, so they come before the counts between."""
    between = counts(gpus)[-2:0:-1]
    for some in ((gpus, 1), between):
        for name in FASTEST:
            yield from ((_sized(name, count, sizes, behind), count) for count in some)


def _sized(name: str, gpus: int, sizes: dict[str, Any], behind: str) -> Config:
    return rung(name, **sizes | {"batch_size": EACH * gpus}, rung=name + behind)


def traced(gpus: int) -> Runs:
    """The same with one traced step, on all GPUs."""
    sizes = FULL_SIZE | {"profile_steps": 1}
    yield from ((_sized(name, gpus, sizes, TRACED), gpus) for name in FASTEST)


def larger(gpus: int) -> Runs:
    """Files that workers decode, and a larger share of each GPU."""
    # All of the default set in every epoch: what workers load and nobody takes costs time, too.
    files = PINNED_WORKERS | {"epochs": 12, "steps": 16, "warmup_steps": 16, "val_steps": 0}
    each = counts(gpus)
    yield from ((rung("dataloader", **files, batch_size=64 * count), count) for count in each)
    yield from (
        (rung("compile", **FULL_SIZE | {"batch_size": 512 * count}), count) for count in (1, gpus)
    )


def communication(gpus: int) -> Runs:
    """Buckets: the largest tell bytes per second, the smallest latency; then other messages."""
    for count in counts(gpus)[:0:-1]:
        yield from ((config, count) for config in vary(_sent(count), bucket_mb=[25.0, 1.0, 100.0]))
    yield replace(_sent(gpus), rung="sync_batchnorm", sync_batchnorm=True), gpus
    yield replace(_sent(gpus), rung="find_unused", find_unused=True), gpus


def _sent(gpus: int) -> Config:
    return rung("channels_last", **FULL_SIZE | {"batch_size": EACH * gpus, "profile_steps": 1})
