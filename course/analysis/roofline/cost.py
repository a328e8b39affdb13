"""What a training step must compute and move: its operators' FLOP and bytes, counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import pandas as pd
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from course.config import Config
from course.training.memory_prediction import fake_step

# Operators that must read some of their inputs a second time, by the places of those inputs:
# training BatchNorm needs the mean over the batch before it can subtract it from anything, and
# its backward likewise two sums before any gradient (places: gradient, input).
READ_TWICE = {"native_batch_norm": (0,), "native_batch_norm_backward": (0, 1)}
# Allocations move nothing, and neither do questions (`prim::device`).
MOVES_NOTHING = ("empty", "new_empty", "empty_like", "new_empty_strided", "empty_strided")


@dataclass(frozen=True)
class Cost:
    """What one image costs in a training step: forward, backward, and its share of the update."""

    flop: float
    bytes: float

    @property
    def flop_per_byte(self) -> float:
        """Arithmetic intensity, the roofline's horizontal axis."""
        return self.flop / self.bytes


class _Traffic(TorchDispatchMode):
    """Adds up calls and bytes by operator, as each reads its inputs and writes its outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()
        self.bytes: Counter[str] = Counter()

    def __torch_dispatch__(
        self, operator: Any, _types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        name = operator.overloadpacket.__name__
        moved = _moved(operator, name, args, kwargs or {}, result)
        if moved:
            self.calls[name] += 1
            self.bytes[name] += moved
        return result


def operators(config: Config) -> pd.DataFrame:
    """What each kind of operator costs for one image of a training step, dearest traffic first.

    Columns: operator, calls (in the whole step), gflop and megabytes (for one image),
    flop_per_byte. FLOP are those of convolutions and matrix products, a multiplication and an
    addition counting as two (PyTorch's FlopCounterMode). Bytes are those of eager mode: every
    operator reads each input from memory and writes each output to it, for no cache holds a
    batch from one operator to the next. Views move nothing; BatchNorm reads its input twice;
    convolution_backward is two kernels, each reading the output's gradient; an operator in place
    both reads and writes. Not counted: layout conversions inside a library. The step runs on
    fake tensors.

    Raises:
        ValueError: a step that PyTorch refuses.
    """
    return _operators(config).copy()


@lru_cache(maxsize=32)
def _operators(config: Config) -> pd.DataFrame:
    with fake_step(config) as step:
        step.update_once()  # for the optimizer's state
        return counted(step.run, config.batch_size)


def counted(run: Callable[[], Any], images: int) -> pd.DataFrame:
    """What a step on fake tensors costs for one of its images, as `operators` tells it."""
    with FlopCounterMode(display=False) as counter, _Traffic() as traffic:
        run()
    flop = {op.__name__: n for op, n in counter.get_flop_counts()["Global"].items()}
    table = pd.DataFrame({"calls": traffic.calls, "megabytes": traffic.bytes, "gflop": flop})
    table = table.fillna(0).rename_axis("operator").reset_index()
    table["flop_per_byte"] = table["gflop"] / table["megabytes"]
    table["gflop"] /= images * 1e9
    table["megabytes"] /= images * 1e6
    return table.sort_values("megabytes", ascending=False, ignore_index=True)


def fused(table: pd.DataFrame) -> pd.DataFrame:
    """Megabytes an image by operator: eager, and where a compiler fuses what is element by element.

    What is fused rides in the kernel before or after it. ReLU then moves nothing; an addition
    only one of its two inputs, a third of its traffic; and ReLU's backward nothing, where its
    mask is computed anew from what is read anyway, or that mask, another third. This is what
    fusing can do: a compiler's schedule may move more.

    Args:
        table: what `operators` returns, by operator.

    Returns:
        By operator; columns: eager, least, most.
    """
    eager = table["megabytes"]
    shares = {"relu_": 0.0, "threshold_backward": 0.0, "add": 1 / 3, "add_": 1 / 3}
    least = eager * [shares.get(name, 1.0) for name in eager.index]
    masks = eager.where(eager.index == "threshold_backward", 0.0) / 3
    return pd.DataFrame({"eager": eager, "least": least, "most": least + masks})


def step_cost(config: Config) -> Cost:
    """FLOP and bytes of one training image: the sums over `operators`.

    The update's share falls as the batch grows, since weights are moved once a step.

    Raises:
        ValueError: a step that PyTorch refuses.
    """
    table = operators(plain(config))
    return Cost(float(table["gflop"].sum() * 1e9), float(table["megabytes"].sum() * 1e6))


def plain(config: Config) -> Config:
    """The config with what its step's cost depends on, and all else as it is by default.

    Steps that cost the same are counted once.
    """
    return Config(
        model=config.model,
        image_px=config.image_px,
        batch_size=config.batch_size,
        precision="bf16" if config.is_half else "fp32",  # both 16-bit formats have two bytes
        channels_last=config.channels_last,
        data="synthetic",
        momentum=config.momentum,
        weight_decay=config.weight_decay,
    )


def _moved(operator: Any, name: str, args: tuple, kwargs: dict[str, Any], result: Any) -> int:
    """Bytes that a call reads and writes."""
    if name in MOVES_NOTHING:
        return 0
    read, made = _tensors((args, kwargs)), _tensors(result)
    known = {tensor.untyped_storage()._cdata for tensor in read}
    new = [tensor for tensor in made if tensor.untyped_storage()._cdata not in known]
    places, names = _written(operator)
    changed = _tensors([*(args[at] for at in places if at < len(args)), *map(kwargs.get, names)])
    if not (new or changed):  # what is neither made nor changed: a view
        return 0
    again = _tensors([args[place] for place in READ_TWICE.get(name, ())])
    if name == "convolution_backward" and len(_tensors(result[:2])) == 2:
        again = [args[0]]
    return sum(map(_bytes, [*read, *again, *new, *changed]))


@cache
def _written(operator: Any) -> tuple[list[int], list[str]]:
    """Which of its arguments an operator writes into: their places, and their names."""
    if torch.Tag.inplace_view in operator.tags:
        return [], []
    written = [each for each in enumerate(operator._schema.arguments) if each[1].is_write]
    return [place for place, _ in written], [argument.name for _, argument in written]


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _bytes(tensor: torch.Tensor) -> int:
    """Bytes of a tensor; an expanded one is read from the few that are there."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())
