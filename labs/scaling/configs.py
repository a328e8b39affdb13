"""Configs recorded on several GPUs: how rungs scale, what ranks send, how files feed them.

A node of eight GPUs is only available for minutes, so the most important runs come first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from course import Config, rung, vary
from course.lab import FULL_SIZE, configs
from course.runs import recordings

FASTEST_RUNGS = ("channels_last", "compile", "algebra")
IMAGES_PER_GPU = recordings.SETUP["batch_size"]  # per step
# Workers only read files, and on one GPU four were as good as fifteen. Each makes two batches
# ahead and a thread decodes four more: warm-up is longer than these last.
FROM_FILES: dict[str, Any] = configs.PINNED_WORKERS | {
    "data": "default",
    "format": "gpu_decode",
    "workers": 4,
    "epochs": 1,
    "steps": 80,
    "warmup_steps": 20,
    "val_steps": 0,
}
Runs = Iterator[tuple[Config, int]]


def gpu_counts(gpus: int) -> list[int]:
    """List the powers of two below a number of GPUs, and that number."""
    return [2**power for power in range(gpus.bit_length()) if 2**power < gpus] + [gpus]


def fastest(gpus: int) -> Runs:
    """Yield the fastest rungs on synthetic images."""
    yield from _by_importance(gpus, FULL_SIZE)


def from_files(gpus: int) -> Runs:
    """Yield the fastest rungs on JPEG files that each GPU decodes."""
    yield from _by_importance(gpus, FROM_FILES, "-gpu_decode")


def _by_importance(gpus: int, sizes: dict[str, Any], suffix: str = "") -> Runs:
    """Yield all GPUs and one first: they show the efficiency; then the counts between."""
    for counts in ((gpus, 1), gpu_counts(gpus)[-2:0:-1]):
        for name in FASTEST_RUNGS:
            yield from ((_config(name, count, sizes, suffix), count) for count in counts)


def _config(name: str, gpus: int, sizes: dict[str, Any], suffix: str = "") -> Config:
    return rung(name, **sizes | {"batch_size": IMAGES_PER_GPU * gpus}, rung=name + suffix)


def traced(gpus: int) -> Runs:
    """Yield the fastest rungs with one traced step, on all GPUs."""
    sizes = FULL_SIZE | {"profile_steps": 1}
    yield from ((_config(name, gpus, sizes, "-traced"), gpus) for name in FASTEST_RUNGS)


def larger(gpus: int) -> Runs:
    """Yield the compiled step with more images on each GPU."""
    yield from ((rung("compile", **FULL_SIZE | {"batch_size": 512 * n}), n) for n in (1, gpus))


def fixed_batch(gpus: int) -> Runs:
    """Yield strong scaling: a batch that all GPUs share, large and small."""
    for count in gpu_counts(gpus):
        for size in (1024, 256):
            sizes = FULL_SIZE | {"batch_size": size, "rung": f"strong-{size}"}
            yield rung("channels_last", **sizes), count


def communication(gpus: int) -> Runs:
    """Yield traced runs: large buckets show bytes per second, small ones latency; then others."""
    sizes = FULL_SIZE | {"profile_steps": 1}
    for count in gpu_counts(gpus)[:0:-1]:
        for config in vary(_config("channels_last", count, sizes), bucket_mb=[25.0, 1.0, 100.0]):
            yield config, count
    config = _config("channels_last", gpus, sizes)
    yield replace(config, rung="sync_batchnorm", sync_batchnorm=True), gpus
    yield replace(config, rung="find_unused", find_unused=True), gpus


def network(gpus: int) -> Runs:
    """Yield runs whose ranks are on simulated hosts, and the same on one host.

    Of 4 GPUs, 2 hosts come first. Between hosts, NCCL sends through a network.
    """
    for name in ("channels_last", "compile"):
        for count in reversed(gpu_counts(gpus)):
            for hosts in [hosts for hosts in gpu_counts(count) if count % hosts == 0]:
                yield replace(_config(name, count, FULL_SIZE), hosts=hosts), count
    config = replace(_config("compile", gpus, FULL_SIZE), hosts=2)
    yield from ((changed, gpus) for changed in vary(config, bucket_mb=[1.0, 5.0, 100.0]))
