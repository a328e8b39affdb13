"""The roofline of a model: the least time of a training step, by what it computes and moves.

A program that does `i` FLOP per byte cannot do more than min(FLOP/s of the compute units,
i × bytes/s of the memory): Williams, Waterman and Patterson, "Roofline: an insightful visual
performance model", CACM 52(4), 2009.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trainspeed.costs import Cost, OperatorCost, count_operators, total
from trainspeed.formats import HALF, tf32_settings
from trainspeed.memory import PredictionError, fake_step, update_once
from trainspeed.rates import Ceilings, measure_ceilings, published_ceilings
from trainspeed.recorder import is_compiled
from trainspeed.text import digits, flop_rate

FORMAT_NAMES = {torch.float32: "fp32", **{dtype: name for name, dtype in HALF.items()}}
# Operators that compute much, and whose FLOP PyTorch may not count.
# The fused cells of PyTorch (_thnn_…) only compute element by element.
HEAVY = re.compile(r"(?!_thnn_).*(?:rnn|lstm|gru|_mm$|trilinear|cdist|fft|linalg)")
TIME_IT = "`trainspeed profile` shows what limits the script that trains it"


@dataclass(frozen=True)
class Roofline:
    """What a step costs, and the least seconds in which a machine can do it.

    Attributes:
        cost: of the step, or of one sample; the times are then of one, too.
        ceilings: of the machine.
        precision: the format of the products: fp32, tf32, bf16 or fp16.
        samples: in the step.
        operators: their costs, the most bytes first.
    """

    cost: Cost
    ceilings: Ceilings
    precision: str
    samples: int = 1
    operators: Sequence[OperatorCost] = ()

    @property
    def compute_s(self) -> float:
        """The least seconds for the FLOP."""
        return self.cost.flop / self.ceilings.flop_per_s[self.precision]

    @property
    def memory_s(self) -> float:
        """The least seconds for the bytes, if no compiler fuses operators."""
        return self.cost.bytes / self.ceilings.bytes_per_s

    @property
    def bound(self) -> str:
        """Which of the two takes longer: "memory" or "compute"."""
        return "memory" if self.memory_s > self.compute_s else "compute"

    @property
    def step_s(self) -> float:
        """The least seconds of the step: the longer of the two."""
        return max(self.compute_s, self.memory_s)

    def share(self, step_s: float) -> float:
        """Return which part of the bound a measured step reaches.

        A share above 1 means that other programs slowed down the measurement of the ceilings, that
        a compiler fused operators, or that a cache served bytes that count as moved.
        """
        return self.step_s / step_s

    def __str__(self) -> str:
        most = ", ".join(
            f"{row.operator} {row.bytes / self.cost.bytes:.0%}" for row in self.operators[:3]
        )
        ceilings, rate = self.ceilings, self.ceilings.flop_per_s[self.precision]
        lines = [
            f"A step of {self.samples} samples: {digits(self.cost.flop / 1e9)} GFLOP, "
            f"{digits(self.cost.bytes / 1e9)} GB, {digits(self.cost.flop_per_byte)} FLOP per byte",
            f"{ceilings.machine} ({ceilings.source}): {flop_rate(rate)} in "
            f"{self.precision}, {digits(ceilings.bytes_per_s / 1e9)} GB/s",
            f"computing takes at least {digits(1e3 * self.compute_s)} ms, moving bytes "
            f"{digits(1e3 * self.memory_s)} ms",
            f"→ {self.bound} is the limit: at most {digits(self.samples / self.step_s)} samples/s",
        ]
        return "\n".join([*lines, *([f"most bytes: {most}"] if most else [])])


def roofline(
    model: nn.Module | Callable[[], nn.Module], inputs: Any, *, gpu: str = "", **options: Any
) -> Roofline:
    """Return the roofline of a training step of your model: forward, backward and update.

    The step runs on tensors without content, so the model is not changed. Its costs are those of
    eager mode (see `trainspeed.costs.count_operators`); `torch.compile` moves fewer bytes.

    Args:
        model: or a function that returns it, which creates it without memory.
        inputs: the model's, as in `trainspeed.predict_memory`: a tensor, or several as a tuple or a
            dict.
        gpu: takes the ceilings from this GPU's data sheet, such as "H100". By default, they are
            measured on the model's device, which takes seconds.
        options: targets, loss, optimizer, autocast, …, as in `predict_memory`.

    Raises:
        ValueError: the model can't be counted, or the GPU is not known.
    """
    if isinstance(model, nn.Module) and is_compiled(model):
        raise PredictionError(
            f"{type(model).__name__} is compiled: operators are counted one by one, and a compiler "
            f"fuses them. Pass the model as it was before torch.compile"
        )
    ceilings = published_ceilings(gpu) if gpu else None
    with fake_step(model, inputs, advice=TIME_IT, **options) as step:
        update_once(step.optimizer)  # creates the optimizer's state
        operators = count_operators(step.run)
        precision, samples = _format_of(step.model, step.autocast), step.batch_size
    cost = total(operators)
    if not cost.flop:
        raise PredictionError(
            f"no FLOP of the model are known: PyTorch counts those of convolutions, matrix "
            f"products and attention. {TIME_IT}"
        )
    uncounted = [row.operator for row in operators if not row.flop and HEAVY.match(row.operator)]
    if uncounted:
        raise PredictionError(
            f"the FLOP of {', '.join(uncounted)} are not known: PyTorch counts those of "
            f"convolutions, matrix products and attention. {TIME_IT}"
        )
    device = _device_of(model)
    if precision == "fp32" and (ceilings or device.type == "cuda") and _uses_tf32(operators):
        precision = "tf32" if ceilings is None or "tf32" in ceilings.flop_per_s else "fp32"
    ceilings = ceilings or measure_ceilings(device, [precision])
    if precision not in ceilings.flop_per_s:
        known = ", ".join(ceilings.flop_per_s)
        raise ValueError(f"{ceilings.machine} has no rate in {precision}: it has {known}")
    return Roofline(cost, ceilings, precision, samples, operators)


def _uses_tf32(operators: Sequence[OperatorCost]) -> bool:
    """Return whether some products use TF32, as convolutions do by default.

    The bound is then that of a step with all products in TF32.
    """
    for_convolutions, for_products = tf32_settings()
    names = [row.operator for row in operators if row.flop]
    return any(for_convolutions if "conv" in name else for_products for name in names)


def _format_of(model: nn.Module, autocast: torch.dtype | None) -> str:
    weights = [p.dtype for p in model.parameters() if p.is_floating_point()]
    dtype = autocast or weights[0]
    if dtype not in FORMAT_NAMES:
        known = ", ".join(str(known) for known in FORMAT_NAMES)
        raise PredictionError(f"the weights are {dtype}: expected {known}")
    return FORMAT_NAMES[dtype]


def _device_of(model: Any) -> torch.device:
    """Return the device of a model's weights, or this machine's for one that has no memory."""
    weights = [*model.parameters()] if isinstance(model, nn.Module) else []
    if weights and weights[0].device.type != "meta":
        return weights[0].device
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    return accelerator or torch.device("cpu")
