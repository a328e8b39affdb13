"""The recorded part of labs/compile: one fused kernel, and training steps with new shapes.

    python -m research.compile OUT.jsonl [--limit SECONDS]

Each part is a line, which a recorded machine stores under "compile". PyTorch's cache on disk must
be empty: set TORCHINDUCTOR_CACHE_DIR to an empty folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course.training import models
from labs import compile as compilation
from research.sweep import command, device

TAIL = (256, 256, 56, 56)  # output of the first stage of ResNet-50 for 256 images
ROUNDS = 20
NETWORK, CLASSES = "resnet18", 1000  # it is compiled eight times
SIDES = (128, 160, 192, 224)
BATCHES = (256, 100)  # an epoch's last batch is smaller


def tail() -> dict[str, Any]:
    """Measure a residual block's end in bf16, in inference: time, source and rounding errors.

    differ: share of values that differ from eager PyTorch's, as compiled and with
    emulate_precision_casts.
    """
    torch.manual_seed(0)
    place = device()
    block = compilation.BlockEnd(TAIL[1]).to(place).eval()
    inputs = [_nhwc(torch.randn(TAIL, device=place, dtype=torch.bfloat16)) for _ in range(2)]
    with torch.no_grad(), torch.autocast(place.type, torch.bfloat16):
        eager = block(*inputs)
        ms = {"eager": _ms(lambda: block(*inputs))}
        compiled = torch.compile(block)
        differ = {"compiled": _share_different(compiled(*inputs), eager)}
        ms["compiled"] = _ms(lambda: compiled(*inputs))
        torch._dynamo.reset()
        with torch._inductor.config.patch(emulate_precision_casts=True):
            differ["emulated"] = _share_different(torch.compile(block)(*inputs), eager)
        kernels = compilation.kernels(block, *inputs)
    kernels = [{"name": kernel.name, "source": kernel.source} for kernel in kernels]
    return {"shape": TAIL, "bytes": eager.nbytes, "ms": ms, "differ": differ, "kernels": kernels}


def shapes() -> dict[str, Any]:
    """Time training steps with new shapes: the first step with each shape, and later steps.

    Shapes: growing images, as in progressive resizing; and an epoch's last, smaller batch.
    """
    growing = [(64, side) for side in SIDES]
    ending = [(count, SIDES[0]) for count in BATCHES]
    rows: list[dict[str, Any]] = []
    courses = (("growing", growing, None), ("ending", ending, None), ("growing", growing, False))
    for name, sizes, dynamic in courses:
        torch.compiler.reset()
        step = _training(dynamic)
        for count, side in sizes:
            row = {"course": name, "dynamic": dynamic, "images": count, "image_px": side}
            # The first shape of a course has the same graph however dynamic is set.
            row["in_cache"] = dynamic is False and (count, side) == growing[0]
            rows.append(row | _time_shape(step, count, side))
    return {"network": NETWORK, "precision": "bf16", "rows": rows}


def _time_shape(step: Callable, count: int, side: int) -> dict[str, Any]:
    images = _nhwc(torch.randn(count, 3, side, side, device=device()))
    labels = torch.zeros(count, dtype=torch.long, device=device())
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]
    first_s = _seconds(lambda: step(images, labels))
    graphs = stats["unique_graphs"] - before
    return {"graphs": graphs, "first_s": first_s, "ms": _ms(lambda: step(images, labels))}


def _training(dynamic: bool | None) -> Callable:
    """Return a function that takes a training step of a compiled network."""
    torch.manual_seed(0)
    net = models.create(NETWORK, CLASSES).to(device()).to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, fused=True)
    compiled = torch.compile(net, dynamic=dynamic)

    def step(images: torch.Tensor, labels: torch.Tensor) -> None:
        with torch.autocast(device().type, torch.bfloat16):
            loss = nn.functional.cross_entropy(compiled(images), labels)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return step


def _nhwc(images: torch.Tensor) -> torch.Tensor:
    return images.to(memory_format=torch.channels_last)


def _share_different(actual: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the share of values that differ."""
    return float((actual != expected).float().mean())


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    if device().type != "cpu":
        torch.accelerator.synchronize(device())
    return time.perf_counter() - begin


def _ms(work: Callable[[], Any]) -> float:
    """Return the median of ROUNDS synchronised calls, after three that are not counted."""
    times = [_seconds(work) for _ in range(3 + ROUNDS)][3:]
    return 1e3 * sorted(times)[ROUNDS // 2]


PARTS = {"tail": tail, "shapes": shapes}


if __name__ == "__main__":
    command(__doc__, [{"part": name} for name in PARTS], lambda part: PARTS[part]())
