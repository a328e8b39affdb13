"""The FLOP and bytes of a training step, counted by operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from course.config import Config
from course.training.memory_prediction import fake_step

# Operators that read inputs twice, with the places of those inputs: in training, BatchNorm needs
# the batch's mean before it can subtract it, and its backward needs two sums (of the gradient and
# the input) before it can compute a gradient.
READ_TWICE = {"native_batch_norm": (0,), "native_batch_norm_backward": (0, 1)}
ALLOCATIONS = ("empty", "new_empty", "empty_like", "new_empty_strided", "empty_strided")


@dataclass(frozen=True)
class Cost:
    """The cost of one image in a training step: forward, backward, its share of the update."""

    flop: float
    bytes: float

    @property
    def flop_per_byte(self) -> float:
        """Return the arithmetic intensity, the roofline's horizontal axis."""
        return self.flop / self.bytes


class _Traffic(TorchDispatchMode):
    """Counts calls and bytes by operator."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        result = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        if moved := _moved_bytes(operator, name, args, kwargs or {}, result):
            self.calls[name] += 1
            self.bytes[name] += moved
        return result


def operators(config: Config) -> pd.DataFrame:
    """Count what each operator costs per image of a training step, the most bytes first.

    Columns: operator, calls (per step), gflop and megabytes (per image), flop_per_byte. Only the
    settings that change the cost are used, with synthetic data. The step runs on fake tensors.

    FLOP are those of convolutions and matrix products (PyTorch's FlopCounterMode), where a
    multiplication and an addition count as two. Bytes are those of eager mode: each operator reads
    its inputs from memory and writes its outputs to it, because no cache is as large as a batch.
    Views move nothing, BatchNorm reads its input twice, convolution_backward has two kernels that
    both read the output's gradient, and an operator in place reads and writes. Layout conversions
    inside a library are not counted.

    Raises:
        ValueError: PyTorch rejects the step.
    """
    settings = Config(
        model=config.model,
        image_px=config.image_px,
        batch_size=config.batch_size,
        precision="bf16" if config.is_half else "fp32",  # both 16-bit formats have two bytes
        channels_last=config.channels_last,
        data="synthetic",
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )
    return _count_once(settings).copy()


@lru_cache(maxsize=32)
def _count_once(config: Config) -> pd.DataFrame:
    with fake_step(config) as step:
        step.update_once()  # creates the optimizer's state
        return count_operators(step.run, config.batch_size)


def count_operators(run: Callable[[], Any], images: int) -> pd.DataFrame:
    """Return the table of `operators` for any step on fake tensors.

    Args:
        run: runs the step.
        images: the number of images in it.
    """
    with FlopCounterMode(display=False) as counter, _Traffic() as traffic:
        run()
    flop = {op.__name__: count for op, count in counter.get_flop_counts()["Global"].items()}
    table = pd.DataFrame({"calls": traffic.calls, "megabytes": traffic.bytes, "gflop": flop})
    table = table.fillna(0).rename_axis("operator").reset_index()
    table["flop_per_byte"] = table["gflop"] / table["megabytes"]
    table["gflop"] /= images * 1e9
    table["megabytes"] /= images * 1e6
    return table.sort_values("megabytes", ascending=False, ignore_index=True)


def fusion_traffic(table: pd.DataFrame) -> pd.DataFrame:
    """Return megabytes per image by operator: eager, and if a compiler fuses pointwise operators.

    A fused operator is part of the kernel before or after it. Then ReLU moves nothing; an addition
    moves one of its two inputs, a third of its traffic; and ReLU's backward moves nothing if its
    mask is recomputed from what the kernel reads anyway, or else the mask, also a third. A
    compiler's schedule may move more.

    Args:
        table: from `operators`, indexed by operator.

    Returns:
        By operator; columns: eager, least, most.
    """
    eager = table["megabytes"]
    shares = {"relu_": 0.0, "threshold_backward": 0.0, "add": 1 / 3, "add_": 1 / 3}
    least = eager * [shares.get(name, 1.0) for name in eager.index]
    masks = eager.where(eager.index == "threshold_backward", 0.0) / 3
    return pd.DataFrame({"eager": eager, "least": least, "most": least + masks})


def step_cost(config: Config) -> Cost:
    """Return FLOP and bytes per training image, the sums over `operators`.

    The update's share falls as the batch grows, because weights are moved once per step.

    Raises:
        ValueError: PyTorch rejects the step.
    """
    table = operators(config)
    return Cost(float(table["gflop"].sum() * 1e9), float(table["megabytes"].sum() * 1e6))


def _moved_bytes(operator: Any, name: str, args: tuple, kwargs: dict, result: Any) -> int:
    """Return the bytes that a call reads and writes."""
    if name in ALLOCATIONS:
        return 0
    inputs = _tensors((args, kwargs))
    storages = {tensor.untyped_storage()._cdata for tensor in inputs}
    outputs = [t for t in _tensors(result) if t.untyped_storage()._cdata not in storages]
    in_place: list[torch.Tensor] = []
    if torch.Tag.inplace_view not in operator.tags:
        for place, argument in enumerate(operator._schema.arguments):
            if argument.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                in_place += _tensors(value)
    if not (outputs or in_place):  # a view
        return 0
    twice = _tensors([args[place] for place in READ_TWICE.get(name, ())])
    if name == "convolution_backward" and len(_tensors(result[:2])) == 2:
        twice = [args[0]]
    return sum(map(_bytes, [*inputs, *twice, *outputs, *in_place]))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor; an expanded one is read from its smaller storage."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())
