"""Small numbers added to a large one in 16 bits, and three methods that do not lose them.

Kahan 1965, "Further remarks on reducing truncation errors", CACM 8(1); stochastic rounding:
Croci et al. 2022, "Stochastic rounding: implementation, error analysis and applications", Royal
Society Open Science 9(3); both for training: Zamirai et al. 2020, arXiv:2010.06192.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import torch
from threadpoolctl import threadpool_limits
from torch import nn

from course.data import handwritten_digits
from course.training import HALF

Add = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Round = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
METHODS = ("plain", "with a carry", "stochastic rounding", "fp32 master")
DROPPED_BITS = 16  # bits of an fp32 number that bf16 does not have


def add_with_carry(
    total: torch.Tensor, carry: torch.Tensor, update: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add an update and the carry; return the new total, and what rounding took from the update.

    All are of one 16-bit type.
    """
    update = update + carry
    new = total + update
    return new, update - (new - total)


def round_stochastically(number: torch.Tensor, random_bits: torch.Tensor) -> torch.Tensor:
    """Round fp32 to bf16, up or down with a probability that makes the mean exact.

    A bf16 number is the upper half of an fp32 number's bits. A random number that is added to the
    lower half carries over into the upper half as often as the lower half is large.

    Args:
        random_bits: random integers from 0 to 65,535, int32, one for each number.
    """
    bits = number.view(torch.int32) + random_bits
    return (bits >> DROPPED_BITS << DROPPED_BITS).view(torch.float32).bfloat16()


class _Weight:
    """A tensor that is stored by one of METHODS, and updated accordingly."""

    def __init__(
        self, method: str, value: torch.Tensor, dtype: torch.dtype, add: Add, round_to_bf16: Round
    ) -> None:
        self.method, self.add, self.round_to_bf16 = method, add, round_to_bf16
        self.value = value.to(torch.float32 if method == "fp32 master" else dtype)
        self.carry = torch.zeros_like(self.value)

    def update(self, update: torch.Tensor, generator: torch.Generator) -> None:
        """Add an fp32 update."""
        if self.method == "with a carry":
            update = update.to(self.value.dtype)
            self.value, self.carry = self.add(self.value, self.carry, update)
        elif self.method == "stochastic rounding":
            size = {"size": update.shape, "dtype": torch.int32, "generator": generator}
            random_bits = torch.randint(2**DROPPED_BITS, **size)
            self.value = self.round_to_bf16(self.value.float() + update, random_bits)
        else:
            self.value = self.value + update.to(self.value.dtype)


def accumulate_updates(
    precision: str,
    updates: int = 1000,
    add: Add = add_with_carry,
    round_to_bf16: Round = round_stochastically,
) -> pd.DataFrame:
    """Add updates of 0.0001 to a weight of 1; one row per update.

    Columns: METHODS ("stochastic rounding" only for bf16).
    """
    generator, columns = torch.Generator().manual_seed(0), {}
    for method in METHODS:
        if method == "stochastic rounding" and precision != "bf16":
            continue
        dtype = HALF.get(precision, torch.float32)
        weight = _Weight(method, torch.tensor(1.0), dtype, add, round_to_bf16)
        columns[method] = []
        for _ in range(updates):
            weight.update(torch.tensor(0.0001), generator)
            columns[method].append(weight.value.item())
    return pd.DataFrame(columns, index=pd.RangeIndex(1, updates + 1, name="update"))


@threadpool_limits.wrap(limits=1)  # on small matrices, threads only wait for each other
def train_in_bf16(
    steps: int = 1000,
    lr: float = 0.01,
    add: Add = add_with_carry,
    round_to_bf16: Round = round_stochastically,
) -> pd.DataFrame:
    """Train a small network on handwritten digits with SGD, its weights stored by each method.

    Columns: METHODS, with the loss over a step's batch before its update. All methods have the
    same first weights and batches, and compute gradients in fp32 from the stored weights, so that
    they differ only in the update.
    """
    losses = {method: _train(method, steps, lr, add, round_to_bf16) for method in METHODS}
    return pd.DataFrame(losses).rename_axis("step")


def _train(method: str, steps: int, lr: float, add: Add, round_to_bf16: Round) -> list[float]:
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)  # separate: batches must not depend on the method
    images, labels = handwritten_digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    parameters = [*model.parameters()]
    weights = [
        _Weight(method, parameter.detach(), torch.bfloat16, add, round_to_bf16)
        for parameter in parameters
    ]
    losses = []
    for _ in range(steps):
        for parameter, weight in zip(parameters, weights):
            parameter.data = weight.value.bfloat16().float()  # forward uses 16 bits
        batch = torch.randint(len(images), (64,))
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        for weight, gradient in zip(weights, torch.autograd.grad(loss, parameters)):
            weight.update(-lr * gradient, generator)
        losses.append(loss.item())
    return losses
