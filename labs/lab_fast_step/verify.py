"""What the lab's function must do: each look says what it saw, or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROWS, NARROW, WIDE = 4000, 6, 24
Function = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def products(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """s = the sum of z's rows [K], and G = z' z [K, K], of z [M, K]."""
    return z.sum(0), z.t() @ z


def given(s: torch.Tensor, G: torch.Tensor, W: torch.Tensor, M: int) -> tuple:
    """Mean and variance [N] of the columns of y = z W', without y."""
    mean = W @ s / M
    square = ((W @ G) * W).sum(1) / M
    return mean, square - mean**2


def _example() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(ROWS, NARROW, generator=generator, dtype=torch.float64) + 0.5
    return z, torch.randn(WIDE, NARROW, generator=generator, dtype=torch.float64)


def _near(found: Any, wanted: torch.Tensor) -> bool:
    return found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-9)


def is_statistics(function: Function) -> str:
    """Are mean and variance those of y?"""
    z, W = _example()
    y, (s, G) = z @ W.t(), products(z)
    mean, variance = function(s, G, W, ROWS)
    _is_mean(mean, y)
    _is_variance(variance, y, W, G)
    return f"mean and variance are those of y, for all {WIDE} channels"


def _is_mean(mean: torch.Tensor, y: torch.Tensor) -> None:
    assert mean.shape == (WIDE,), f"the mean has shape {tuple(mean.shape)}, not a number a channel"
    assert not _near(mean, y.sum(0)), "it is the sum of y: a mean is divided by M"
    assert not _near(mean, y.sum(0) / (ROWS - 1)), "a mean is divided by M, not by M - 1"
    assert _near(mean, y.mean(0)), "the mean is wrong: y is linear in z, so it is W s / M"


def _is_variance(variance: torch.Tensor, y: torch.Tensor, W: torch.Tensor, G: torch.Tensor) -> None:
    shape = tuple(variance.shape)
    assert shape != (WIDE, WIDE), "W G W' has a row a channel: only its diagonal is wanted"
    assert shape == (WIDE,), f"the variance has shape {shape}, not a number a channel"
    square = y.square().mean(0)
    assert not _near(variance, square), (
        "it is the mean of y²: G is not centred, so the mean's square has to be subtracted"
    )
    once = (W @ G).sum(1) / ROWS - y.mean(0).square()
    assert not _near(variance, once), "y² has W twice: W G W', and W G has it once"
    assert not _near(variance, y.var(0)) and not _near(
        variance, y.square().sum(0) / (ROWS - 1) - y.mean(0).square()
    ), "BatchNorm divides by M, not by M - 1: the batch is all there is"
    whole = y.square().sum(0) - y.mean(0).square()
    assert not _near(variance, whole), "the sum of y² has to be divided by M"
    assert _near(variance, y.var(0, correction=0)), (
        "the variance is wrong: the mean of y² is the diagonal of W G W', divided by M"
    )


class _Largest(TorchDispatchMode):
    """The most numbers that a tensor made meanwhile has."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        sizes = [each.numel() for each in tree_leaves(result) if isinstance(each, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


def makes_no_y(function: Function) -> str:
    """Is nothing made that is as long as y?"""
    z, W = _example()
    s, G = products(z)
    with _Largest() as largest:
        function(s, G, W, ROWS)
    least = WIDE * NARROW
    assert largest.numbers <= least, (
        f"a tensor of {largest.numbers} numbers is made, and {least} are enough: W G, times W "
        f"element by element, has the diagonal of W G W' as its rows' sums"
    )
    return f"the largest tensor made has {largest.numbers} numbers; y would have {ROWS * WIDE:,}"
