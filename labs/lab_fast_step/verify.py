"""The lab's function, and its checks: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

ROWS, NARROW, WIDE = 4000, 6, 24
Function = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def sum_and_gram(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute s, the sum of z's rows [K], and G = z' z [K, K], from z [M, K]."""
    return z.sum(0), z.t() @ z


def statistics(s: torch.Tensor, G: torch.Tensor, W: torch.Tensor, M: int) -> tuple:
    """Compute mean and variance [N] of the columns of y = z W', without y."""
    mean = W @ s / M
    square = ((W @ G) * W).sum(1) / M
    return mean, square - mean**2


def _example() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(ROWS, NARROW, generator=generator, dtype=torch.float64) + 0.5
    return z, torch.randn(WIDE, NARROW, generator=generator, dtype=torch.float64)


def check_statistics(function: Function) -> str:
    """Check that mean and variance are those of y."""
    z, W = _example()
    y, (s, G) = z @ W.t(), sum_and_gram(z)
    mean, variance = function(s, G, W, ROWS)
    _compare(
        "mean",
        mean,
        y.mean(0),
        "y is linear in z, so it is W s / M",
        {
            "it is the sum of y: a mean is divided by M": y.sum(0),
            "a mean is divided by M, not by M - 1": y.sum(0) / (ROWS - 1),
        },
    )
    assert variance.shape != (WIDE, WIDE), "W G W' has a row per channel: use only its diagonal"
    square, mean = y.square().mean(0), y.mean(0)
    divisor = "BatchNorm divides by M, not by M - 1: the batch is the whole population"
    _compare(
        "variance",
        variance,
        y.var(0, correction=0),
        "the mean of y² is the diagonal of W G W', divided by M",
        {
            "it is the mean of y²: G is not centred, so subtract the mean's square": square,
            "y² contains W twice: use W G W'; W G contains it once": (W @ G).sum(1) / ROWS
            - mean**2,
            divisor: y.var(0),
            f"{divisor}, in the mean of y², too": square * ROWS / (ROWS - 1) - mean**2,
            "the sum of y² has to be divided by M": y.square().sum(0) - mean**2,
        },
    )
    return f"mean and variance are those of y, for all {WIDE} channels"


def _compare(
    name: str, actual: Any, right: torch.Tensor, rule: str, mistakes: dict[str, torch.Tensor]
) -> None:
    """Assert that a result is right; if it equals the value of a known mistake, name that."""
    shape = tuple(actual.shape)
    assert shape == (WIDE,), f"the {name} has shape {shape}; expected one number per channel"
    for message, value in mistakes.items():
        assert not torch.allclose(actual, value, rtol=1e-9), message
    assert torch.allclose(actual, right, rtol=1e-9), f"the {name} is wrong: {rule}"


class _LargestResult(TorchDispatchMode):
    """Record the number of elements of the largest tensor that is created in the context."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        self.numbers = max([self.numbers, *sizes])
        return result


def check_sizes(function: Function) -> str:
    """Check that no tensor is larger than W."""
    z, W = _example()
    s, G = sum_and_gram(z)
    with _LargestResult() as largest:
        function(s, G, W, ROWS)
    assert largest.numbers <= WIDE * NARROW, (
        f"the largest tensor has {largest.numbers} numbers, and {WIDE * NARROW} are enough: "
        f"multiply W G and W elementwise; the sum of each row is the diagonal of W G W'"
    )
    return f"the largest tensor has {largest.numbers} numbers; y would have {ROWS * WIDE:,}"
