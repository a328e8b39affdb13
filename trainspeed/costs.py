"""What the operators of a step cost: the FLOP that they compute, and the bytes that they move."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from trainspeed._compat import TorchDispatchMode, arguments_of, tensors_in

# Operators that read inputs twice, with the places of those inputs: in training, BatchNorm needs
# the batch's mean before it can subtract it, and its backward needs two sums (of the gradient and
# the input) before it can compute a gradient.
READ_TWICE = {"native_batch_norm": (0,), "native_batch_norm_backward": (0, 1)}
# Operators that need values of one type. On tensors without content, PyTorch doesn't check that.
PRODUCTS = ("convolution", "mm", "addmm", "bmm", "baddbmm")
ALLOCATIONS = ("empty", "new_empty", "empty_like", "new_empty_strided", "empty_strided")


@dataclass(frozen=True)
class Cost:
    """What a step, an operator or a sample costs."""

    flop: float
    bytes: float

    @property
    def flop_per_byte(self) -> float:
        """Return the arithmetic intensity, the roofline's horizontal axis."""
        return self.flop / self.bytes

    def per(self, samples: int) -> Cost:
        """Return the cost of one of so many samples."""
        return Cost(self.flop / samples, self.bytes / samples)


@dataclass(frozen=True)
class OperatorCost(Cost):
    """The cost of all calls of an operator in a step."""

    operator: str
    calls: int


def count_operators(step: Callable[[], Any]) -> list[OperatorCost]:
    """Count what each operator in a step costs, the most bytes first.

    FLOP are those of convolutions, matrix products and attention (PyTorch's FlopCounterMode), where
    a multiplication and an addition count as two. Bytes are those of eager mode: each operator
    reads its inputs from memory and writes its outputs to it, because no cache is as large as a
    batch. Views move nothing, BatchNorm reads its input twice, convolution_backward has two kernels
    that both read the output's gradient, and an operator in place reads and writes. Layout
    conversions inside a library are not counted.

    Args:
        step: runs the step; inside `trainspeed.fake_gpu.fake_tensors()`, on tensors without
            content, it takes neither memory nor a GPU.
    """
    with FlopCounterMode(display=False) as counter, _Traffic() as traffic:
        step()
    flop = {op.__name__: count for op, count in counter.get_flop_counts().get("Global", {}).items()}
    rows = [
        OperatorCost(float(flop.get(name, 0)), float(moved), name, traffic.calls[name])
        for name, moved in traffic.bytes.items()
    ]
    return sorted(rows, key=lambda row: -row.bytes)


def total(costs: Iterable[Cost]) -> Cost:
    """Return the sum of costs."""
    costs = [*costs]
    return Cost(sum(cost.flop for cost in costs), sum(cost.bytes for cost in costs))


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


def _moved_bytes(operator: Any, name: str, args: tuple, kwargs: dict, result: Any) -> int:
    """Return the bytes that a call reads and writes."""
    if name in ALLOCATIONS:
        return 0
    inputs = tensors_in((args, kwargs))
    types = dict.fromkeys(str(tensor.dtype) for tensor in inputs)
    if name in PRODUCTS and len(types) > 1:
        raise TypeError(f"{name} of {' and '.join(types)}: convert one, as in inputs.float()")
    storages = {tensor.untyped_storage() for tensor in inputs}
    outputs = [t for t in tensors_in(result) if t.untyped_storage() not in storages]
    in_place: list[torch.Tensor] = []
    if torch.Tag.inplace_view not in operator.tags:
        for place, argument in enumerate(arguments_of(operator)):
            if argument.is_write:
                value = args[place] if place < len(args) else kwargs.get(argument.name)
                in_place += tensors_in(value)
    if not (outputs or in_place):  # a view
        return 0
    twice = tensors_in([args[place] for place in READ_TWICE.get(name, ())])
    if name == "convolution_backward" and len(tensors_in(result[:2])) == 2:
        twice = [args[0]]
    return sum(map(_bytes, [*inputs, *twice, *outputs, *in_place]))


def _bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor; an expanded one is read from its smaller storage."""
    return min(tensor.numel() * tensor.itemsize, tensor.untyped_storage().nbytes())
