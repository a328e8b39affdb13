"""The recorded part of lab 3.4: one fused kernel, and training steps with new shapes, on a GPU.

    python -m research.compile OUT.jsonl [--limit SECONDS]

Each part is a line, which a recorded machine has under "compile". Nothing of it may be in PyTorch's
cache on disk: set TORCHINDUCTOR_CACHE_DIR to an empty folder.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from course.training import models
from labs import day3_4_compile as compilation
from research.sweep import command, device

TAIL = (256, 256, 56, 56)  # what the first stage of ResNet-50 returns, of 256 images
ROUNDS = 20
NETWORK, CLASSES = "resnet18", 1000  # it is compiled eight times
SIDES = (128, 160, 192, 224)
BATCHES = (256, 100)  # an epoch's last batch has the images that are left


def tail() -> dict[str, Any]:
    """A residual block's end in bf16, in inference: milliseconds, source, and what rounding does.

    differ: of all numbers, how many are not PyTorch's own, as compiled and with
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
        differ = {"compiled": _differ(compiled(*inputs), eager)}
        ms["compiled"] = _ms(lambda: compiled(*inputs))
        torch._dynamo.reset()
        with torch._inductor.config.patch(emulate_precision_casts=True):
            differ["emulated"] = _differ(torch.compile(block)(*inputs), eager)
        kernels = compilation.kernels(block, *inputs)
    kernels = [{"name": kernel.name, "source": kernel.source} for kernel in kernels]
    return {"shape": TAIL, "bytes": eager.nbytes, "ms": ms, "differ": differ, "kernels": kernels}


def shapes() -> dict[str, Any]:
    """Training steps with new shapes: seconds of the first step with each, milliseconds then.

    Larger and larger images, as of progressive resizing; and an epoch's last, smaller batch.
    """
    growing = [(64, side) for side in SIDES]
    ending = [(count, SIDES[0]) for count in BATCHES]
    rows: list[dict[str, Any]] = []
    courses = (("growing", growing, None), ("ending", ending, None), ("growing", growing, False))
    for name, asked, dynamic in courses:
        torch.compiler.reset()
        step = _training(dynamic)
        for count, side in asked:
            row = {"course": name, "dynamic": dynamic, "images": count, "image_px": side}
            # The first shape of a course has the same graph however dynamic is set.
            row["in_cache"] = dynamic is False and (count, side) == growing[0]
            rows.append(row | _first_and_then(step, count, side))
    return {"network": NETWORK, "precision": "bf16", "rows": rows}


def _first_and_then(step: Callable, count: int, side: int) -> dict[str, Any]:
    images = _nhwc(torch.randn(count, 3, side, side, device=device()))
    labels = torch.zeros(count, dtype=torch.long, device=device())
    stats = torch._dynamo.utils.counters["stats"]
    before = stats["unique_graphs"]
    first_s = _seconds(lambda: step(images, labels))
    graphs = stats["unique_graphs"] - before
    return {"graphs": graphs, "first_s": first_s, "ms": _ms(lambda: step(images, labels))}


def _training(dynamic: bool | None) -> Callable:
    """A function that takes a training step, its network compiled."""
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


def _differ(found: torch.Tensor, due: torch.Tensor) -> float:
    """The share of all numbers that are different."""
    return float((found != due).float().mean())


def _seconds(work: Callable[[], Any]) -> float:
    begin = time.perf_counter()
    work()
    if device().type != "cpu":
        torch.accelerator.synchronize(device())
    return time.perf_counter() - begin


def _ms(work: Callable[[], Any]) -> float:
    """The median of ROUNDS calls, each waited for, after three that are not counted."""
    found = [_seconds(work) for _ in range(3 + ROUNDS)][3:]
    return 1e3 * sorted(found)[ROUNDS // 2]


PARTS = {"tail": tail, "shapes": shapes}


if __name__ == "__main__":
    command(__doc__, [{"part": name} for name in PARTS], lambda part: PARTS[part]())
