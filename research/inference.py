"""The recorded part of inference: ResNet-50's latency by mode, variant and batch.

    python -m research.inference OUT.jsonl [--limit SECONDS]

ResNet-50 with 1,000 classes, random weights and images; seconds from a call until the device is
done, one call after another; cudnn.benchmark on; images are on the device, cast and laid out.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import cache
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import nn

from course.analysis.fresh_compiler import fresh_compiler
from course.training import models
from course.training.precision import set_tf32
from electives.inference.latency import Call, latencies
from electives.inference.variants import LADDER, Variant, create_call, prepare, random_images
from research.sweep import command, device

NETWORK, PX, BUDGET_S = "resnet50", 224, 0.5
EXTREME_BATCHES = (1, 256)  # one image, and many
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
WARM_UP_CALLS = 5
MIN_CALLS, MAX_CALLS = 50, 500  # a 99th percentile needs many
COMPILED = (1, 16, 256)  # each is compiled separately, which is slow
FLOATS = {
    "TF32": Variant(),
    "fp16": Variant("fp16"),
    "bf16": Variant("bf16"),
    "fp16, channels_last": Variant("fp16", channels_last=True),
}
BY_BATCH = {
    "eager": Variant("bf16", channels_last=True, folded=True),
    "CUDA graph": Variant("bf16", channels_last=True, folded=True, graph=True),
    "compiled": LADDER["+ CUDA graph"],
}
# Autograd's context in each mode.
GRADIENTS = {
    "training": torch.enable_grad,
    "evaluation": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def time_calls(call: Call, device: torch.device, budget_s: float) -> dict[str, float]:
    """Time as many calls as fit into the budget: p50_s, p99_s, and calls."""

    def wait() -> None:
        if device.type != "cpu":
            torch.accelerator.synchronize(device)

    first = latencies(call, wait, 1, WARM_UP_CALLS)[0]
    count = int(np.clip(budget_s / first, MIN_CALLS, MAX_CALLS))
    times = latencies(call, wait, count, 0)
    median, late = (float(value) for value in np.percentile(times, [50, 99]))
    return {"p50_s": median, "p99_s": late, "calls": count}


def plan() -> Iterator[dict[str, Any]]:
    """List the settings: modes, then the lab's ladder and other formats, then latency by batch."""
    for batch in EXTREME_BATCHES:
        for way in GRADIENTS:
            yield {"part": "mode", "way": way, "batch": batch}
    for batch in EXTREME_BATCHES:
        for way in LADDER | FLOATS:
            yield {"part": "ladder", "way": way, "batch": batch}
    for way in BY_BATCH:
        for batch in COMPILED if way == "compiled" else BATCHES:
            yield {"part": "batch", "way": way, "batch": batch}


def measure(part: str, way: str, batch: int) -> dict[str, Any]:
    """Measure a row of the plan: p50_s, p99_s, calls and, by part, peak_gib, error or made_s."""
    torch.backends.cudnn.benchmark = True
    reference = scores(batch) if part == "ladder" else None
    set_tf32(way == "TF32")  # fp32 is fp32 elsewhere
    images = random_images(model(), batch, PX)
    if part == "mode":
        return in_mode(way, images)
    variants = BY_BATCH if part == "batch" else LADDER | FLOATS
    return time_variant(images, variants[way], reference)


@cache
def model() -> nn.Module:
    """Create the network with statistics of random images: its scores are neither 0 nor huge."""
    torch.manual_seed(0)
    net = models.create(NETWORK, 1000)
    for part in net.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.ones_(part.weight)  # the last BatchNorm of each block starts at zero
            part.momentum = None  # the mean of all batches
    with torch.no_grad():
        net.train()(random_images(net, 8, PX, seed=1))
    return net.eval().to(device())


@cache
def scores(batch: int) -> torch.Tensor:
    """Compute the reference scores in fp32."""
    set_tf32(False)
    return create_call(model(), random_images(model(), batch, PX), Variant())().double().cpu()


def time_variant(
    images: torch.Tensor, variant: Variant, expected: torch.Tensor | None
) -> dict[str, Any]:
    """Time one variant: made_s is the time until its first answer, if it is compiled.

    Its error is the largest difference from the expected scores, relative to the largest of them.
    """
    with fresh_compiler():
        begin = perf_counter()
        call = create_call(model(), images, variant)
        first = call().double().cpu()
        row: dict[str, Any] = {"made_s": perf_counter() - begin} if variant.compiled else {}
        if expected is not None:
            row["error"] = float((first - expected).abs().max() / expected.abs().max())
        row |= time_calls(call, images.device, BUDGET_S)
    del call
    gc.collect()
    torch.cuda.empty_cache()
    return row


def in_mode(mode: str, images: torch.Tensor) -> dict[str, Any]:
    """Time a bf16, channels-last network in one mode; peak_gib excludes the network itself."""
    network = prepare(deepcopy(model()), Variant("bf16", channels_last=True))
    network.train(mode == "training")
    images = images.bfloat16().to(memory_format=torch.channels_last)

    def call() -> torch.Tensor:
        with GRADIENTS[mode]():
            return network(images)

    return {"peak_gib": _peak_gib(call, images.device), **time_calls(call, images.device, BUDGET_S)}


def _peak_gib(call: Callable[[], Any], place: torch.device) -> float | None:
    if place.type != "cuda":
        return None
    call()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30


if __name__ == "__main__":
    command(__doc__, plan(), measure)
