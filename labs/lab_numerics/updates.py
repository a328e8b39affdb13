"""Small numbers added to a large one in 16 bits, and three ways not to lose them.

Kahan 1965, "Further remarks on reducing truncation errors", CACM 8(1); stochastic rounding:
Croci et al. 2022, "Stochastic rounding: implementation, error analysis and applications", Royal
Society Open Science 9(3); both for training: Zamirai et al. 2020, arXiv:2010.06192.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import torch
from torch import nn

from labs.day1_2_mixed_precision.rounding import DTYPES, handwritten_digits

AddCarried = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
Round = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
WAYS = ("alone", "with a carry", "rounded by chance", "fp32 master")
DROPPED = 16  # bits of an fp32 number that bf16 does not have


def add_carried(
    total: torch.Tensor, carry: torch.Tensor, update: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Add an update and what was left of those before: the new total, and what is left now.

    All are of one 16-bit type.
    """
    update = update + carry
    new = total + update
    return new, update - (new - total)


def by_chance(number: torch.Tensor, chance: torch.Tensor) -> torch.Tensor:
    """Round fp32 to bf16, up or down; up is the likelier, the nearer it is.

    A bf16 number is the upper half of an fp32 number's bits. Whoever adds a random number to the
    lower half carries into the upper one as often as the lower half is large.

    Args:
        chance: random integers from 0 to 65,535, int32, one for each number.
    """
    bits = number.view(torch.int32) + chance
    return (bits >> DROPPED << DROPPED).view(torch.float32).bfloat16()


def adding(
    precision: str,
    updates: int = 1000,
    update: float = 0.0001,
    add: AddCarried = add_carried,
    round_by: Round = by_chance,
) -> pd.DataFrame:
    """A weight of 1 and its updates, stored in each way; a row an update.

    Columns: those of WAYS ("rounded by chance" of bf16 alone).
    """
    dtype, draw = DTYPES[precision], torch.Generator().manual_seed(0)
    small = torch.tensor(update, dtype=dtype)
    alone, total, carry = torch.tensor(1.0, dtype=dtype), torch.tensor(1.0, dtype=dtype), small * 0
    drawn, master = torch.tensor(1.0, dtype=dtype), torch.tensor(1.0)
    rows = []
    for _ in range(updates):
        alone = alone + small
        total, carry = add(total, carry, small)
        master = master + update
        row = {"alone": alone.item(), "with a carry": total.item()}
        if precision == "bf16":
            chance = torch.randint(2**DROPPED, (), dtype=torch.int32, generator=draw)
            drawn = round_by(drawn.float() + update, chance)
            row["rounded by chance"] = drawn.item()
        rows.append(row | {"fp32 master": master.item()})
    return pd.DataFrame(rows, index=pd.RangeIndex(1, updates + 1, name="update"))


def learned_in_bf16(
    steps: int = 1000,
    lr: float = 0.01,
    add: AddCarried = add_carried,
    round_by: Round = by_chance,
) -> pd.DataFrame:
    """A small network learns handwritten digits with SGD, its weights stored in each way.

    Columns: those of WAYS: the loss over the batch of a step, before its update; the index is the
    step. Each has the same first weights and batches; gradients are computed in fp32 from the
    weights as they are stored, so that the ways differ in the update alone.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # several would wait for each other at matrices as small as these
    try:
        losses = {way: _train(way, steps, lr, add, round_by) for way in WAYS}
    finally:
        torch.set_num_threads(threads)
    return pd.DataFrame(losses).rename_axis("step")


def _train(way: str, steps: int, lr: float, add: AddCarried, round_by: Round) -> list[float]:
    torch.manual_seed(0)
    draw = torch.Generator().manual_seed(0)  # its own, or the batches would be others

    def updated(weight: torch.Tensor, carry: torch.Tensor, update: torch.Tensor) -> Any:
        if way == "with a carry":
            return add(weight, carry, update.to(weight.dtype))
        if way == "rounded by chance":
            chance = torch.randint(2**DROPPED, update.shape, dtype=torch.int32, generator=draw)
            return round_by(weight.float() + update, chance), carry
        return weight + update.to(weight.dtype), carry

    images, labels = handwritten_digits()
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    weights = [*model.parameters()]
    dtype = torch.float32 if way == "fp32 master" else torch.bfloat16
    stored = [weight.detach().to(dtype) for weight in weights]
    carries = [torch.zeros_like(each) for each in stored]
    losses = []
    for _ in range(steps):
        for weight, each in zip(weights, stored):
            weight.data = each.bfloat16().float()  # what forward sees has 16 bits
        batch = torch.randint(len(images), (64,))
        loss = nn.functional.cross_entropy(model(images[batch]), labels[batch])
        for place, gradient in enumerate(torch.autograd.grad(loss, weights)):
            stored[place], carries[place] = updated(stored[place], carries[place], -lr * gradient)
        losses.append(loss.item())
    return losses
