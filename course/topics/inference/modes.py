"""What a network keeps and does in training, evaluation, and without a graph for gradients."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import Any

import pandas as pd
import torch
from torch import nn

from course.topics.inference.latency import timed
from course.topics.inference.trained import top1
from course.topics.inference.ways import images_for

# Each mode, and what there is of autograd in it.
GRADIENTS: dict[str, Callable[[], AbstractContextManager]] = {
    "training": torch.enable_grad,
    "evaluation": torch.enable_grad,
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
}


def forgotten(
    model: nn.Module, batches: Iterable[int] = (256, 32, 4, 1), images: int = 1024
) -> pd.DataFrame:
    """Accuracy of a network that was left in training's mode, by how many images it gets at once.

    Columns: batch, "eval() forgotten", "eval() after that": BatchNorm's averages are others then.
    """
    rows = []
    for batch in batches:
        left = deepcopy(model).train()
        wrong = top1(left, images, batch)
        late = top1(left.eval(), images)
        rows.append({"batch": batch, "eval() forgotten": wrong, "eval() after that": late})
    return pd.DataFrame(rows)


def modes(model: nn.Module, batch: int = 1, px: int = 32, budget_s: float = 0.5) -> pd.DataFrame:
    """What an answer takes in each mode: columns way, batch, p50_s, p99_s, calls, peak_gib."""
    return pd.DataFrame(in_modes(deepcopy(model), images_for(model, batch, px), budget_s))


def in_modes(network: nn.Module, images: torch.Tensor, budget_s: float) -> Iterator[dict[str, Any]]:
    """A row a mode; the network is changed by it."""
    for mode, gradients in GRADIENTS.items():
        network.train(mode == "training")

        def call() -> torch.Tensor:
            with gradients():  # noqa: B023
                return network(images)

        row = {"way": mode, "batch": len(images), "peak_gib": _peak_gib(call, images.device)}
        yield row | timed(call, images.device, budget_s)


def _peak_gib(call: Callable[[], Any], device: torch.device) -> float | None:
    """What a call allocates at most, in GiB; of a CPU it is not known."""
    if device.type != "cuda":
        return None
    call()
    gc.collect()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    torch.cuda.synchronize()
    return (torch.cuda.max_memory_allocated() - before) / 2**30
