"""The lab's function, and its checks: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from course._compat import TorchDispatchMode, tensors_in
from course.lab import results

ROWS, NARROW, WIDE = 4000, 6, 60
# Rows, and columns of z and of y: also as in a layer that becomes narrower.
SHAPES = ((ROWS, NARROW, WIDE), (35, 7, 3), (500, 16, 16))
Function = Callable[..., tuple[torch.Tensor, torch.Tensor]]


def statistics(z: torch.Tensor, W: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute mean and variance [N] of the columns of y = z W', without y; z [M, K], W [N, K]."""
    M = len(z)
    s, G = z.sum(0), z.t() @ z
    mean = W @ s / M
    square = ((W @ G) * W).sum(1) / M
    return mean, square - mean**2


def _example(rows: int, narrow: int, wide: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(rows, narrow, generator=generator, dtype=torch.float64)
    z = z + torch.linspace(0.5, 1, narrow).double()
    return z, torch.randn(wide, narrow, generator=generator, dtype=torch.float64)


def check_statistics(function: Function) -> str:
    """Check that mean and variance are those of y, for several shapes, and in fp32."""
    for shape in SHAPES:
        _check(function, *_example(*shape))
    z, W = (tensor.float() for tensor in _example(ROWS, NARROW, WIDE))
    for name, value, right in zip(("mean", "variance"), _call(function, z, W), statistics(z, W)):
        assert torch.allclose(value, right, rtol=1e-3, atol=1e-4), f"in fp32, the {name} is wrong"
    return f"mean and variance are those of y, for {len(SHAPES)} shapes"


def _call(function: Function, z: torch.Tensor, W: torch.Tensor) -> tuple[Any, Any]:
    result = results.call(function, z, W)
    assert isinstance(result, tuple | list) and len(result) == 2, (
        f"it returns {type(result).__name__}: expected two tensors, the mean and the variance"
    )
    for name, tensor in zip(("mean", "variance"), result):
        assert isinstance(tensor, torch.Tensor) and tensor.dtype == z.dtype, (
            f"for z in {z.dtype}, the {name} is {getattr(tensor, 'dtype', tensor)!s:.50}: expected "
            f"a tensor of the same type"
        )
    return (*result,)


def _check(function: Function, z: torch.Tensor, W: torch.Tensor) -> None:
    """Compare one pair of results, with the values of likely mistakes, too."""
    y, G, (M, N) = z @ W.t(), z.t() @ z, (len(z), len(W))
    mean, variance = _call(function, z, W)
    _compare(
        "mean",
        mean,
        y.mean(0),
        "y is linear in z, so it is W s / M, where s is the sum of z's rows",
        {
            "it is the sum of y: divide it by M": y.sum(0),
            "divide by M, not by M - 1": y.sum(0) / (M - 1),
        },
    )
    assert variance.shape != (N, N), "W G Wᵀ has a row per channel: use only its diagonal"
    square, mean = y.square().mean(0), y.mean(0)
    divisor = "BatchNorm divides by M, not by M - 1: the batch is the whole population"
    _compare(
        "variance",
        variance,
        y.var(0, correction=0),
        "the mean of y² is the diagonal of W G Wᵀ, divided by M",
        {
            "it is the mean of y²: G is not centred, so subtract the mean's square": square,
            "subtract the square of the mean, not the mean": square - mean,
            "y² contains W twice: use W G Wᵀ; W G contains it once": (W @ G).sum(1) / M - mean**2,
            divisor: y.var(0),
            f"{divisor}, in the mean of y², too": square * M / (M - 1) - mean**2,
            "the sum of y² has to be divided by M": y.square().sum(0) - mean**2,
            "it is the standard deviation: don't take the square root": y.std(0, correction=0),
            "two different channels of z vary together: G needs their products, too, not only "
            "the squares of single channels": W.square() @ z.square().mean(0) - mean**2,
            "two different channels of z vary together: the variances of single channels are not "
            "enough": W.square() @ z.var(0, correction=0),
        },
    )


def _compare(
    name: str, actual: Any, right: torch.Tensor, rule: str, mistakes: dict[str, torch.Tensor]
) -> None:
    """Assert that a result is right; if it equals the value of a known mistake, name that."""
    assert actual.shape == right.shape, (
        f"the {name} has shape {(*actual.shape,)}, expected {(*right.shape,)}: one number per "
        f"channel"
    )
    if not torch.allclose(actual, right, rtol=1e-9):
        for message, value in mistakes.items():
            assert not torch.allclose(actual, value, rtol=1e-9), f"the {name}: {message}"
        wrong = int((~torch.isclose(actual, right, rtol=1e-9)).sum())
        raise AssertionError(f"the {name} of {wrong} of {len(right)} channels is wrong: {rule}")


class _Results(TorchDispatchMode):
    """Record the shapes of all tensors that are created in the context, without views of z."""

    def __init__(self, z: torch.Tensor) -> None:
        super().__init__()
        self.shapes: list[torch.Size] = []
        self._storage = z.untyped_storage().data_ptr()

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = operator(*args, **(kwargs or {}))
        for tensor in tensors_in(result):
            if tensor.untyped_storage().data_ptr() != self._storage:
                self.shapes.append(tensor.shape)
        return result


def check_sizes(function: Function) -> str:
    """Check that neither y nor a table of N x N numbers is computed."""
    z, W = _example(ROWS, NARROW, WIDE)
    with _Results(z) as created:
        function(z, W)
    sizes = [shape.numel() for shape in created.shapes]
    assert max(sizes) < ROWS * WIDE, (
        f"a tensor of {max(sizes):,} numbers was created: that is y itself, which should never be "
        f"computed. Use only s, G and W"
    )
    rows = sum(shape.numel() for shape in created.shapes if ROWS in shape)
    assert rows < ROWS * WIDE, (
        f"tensors with a row for each of z's {ROWS:,} have {rows:,} numbers in all: y itself has "
        f"{ROWS * WIDE:,}, also if you compute it column by column. Use only s, G and W"
    )
    tables = [shape.numel() for shape in created.shapes if ROWS not in shape]
    assert max(tables) <= WIDE * NARROW, (
        f"a table of {max(tables)} numbers was created, and {WIDE * NARROW} are enough: "
        f"multiply W G and W elementwise; the sum of each row is the diagonal of W G Wᵀ"
    )
    return f"the largest new tensor has {max(sizes):,} numbers; y would have {ROWS * WIDE:,}"
