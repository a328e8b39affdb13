"""Checks of the lab's two functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import pad

from course._compat import TorchDispatchMode
from course.lab import results
from electives.microscope.sparsity import Prune, prune

Function = Callable[..., Any]
SHAPES = ((5, 7, 9), (4, 8, 16), (3, 1, 17))  # M, N, K


class _Products(TorchDispatchMode):
    """Keep the matrices of all products in the context."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices: list[tuple[torch.Tensor, ...]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket in (torch.ops.aten.mm, torch.ops.aten.bmm):
            self.matrices.append(args[:2])
        return func(*args, **kwargs or {})


def padded_product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return a @ b, from matrices whose rows have a multiple of 16 bytes."""
    step = 16 // a.element_size()
    k, n = -b.shape[0] % step, -b.shape[1] % step
    return (pad(a, (0, k)) @ pad(b, (0, n, 0, k)))[:, : b.shape[1]]


def check_product(function: Function) -> str:
    """Check the result, for several shapes and types."""
    for m, n, k in SHAPES:
        for dtype in (torch.float32, torch.bfloat16, torch.float64):
            a, b = (torch.arange(i * j).reshape(i, j).to(dtype) % 5 for i, j in ((m, k), (k, n)))
            result = results.call(function, a, b)
            name = f"({m}, {k}) @ ({k}, {n}) in {dtype}"
            shape = (*getattr(result, "shape", ()),)
            assert shape == (m, n), (
                f"{name}: the result has the shape {shape}, expected {m, n}: cut off the columns "
                f"that were added to b"
            )
            assert result.dtype == dtype, f"{name}: the result is {result.dtype}"
            assert torch.equal(result, a @ b), f"{name}: wrong result. Are all added numbers 0?"
    return f"the same results as a @ b, for {len(SHAPES)} shapes in 3 formats"


def check_rows(function: Function) -> str:
    """Check that the rows of both matrices have a multiple of 16 bytes, and none is too long."""
    for m, n, k in SHAPES:
        for dtype in (torch.float32, torch.bfloat16):
            a, b = torch.ones(m, k, dtype=dtype), torch.ones(k, n, dtype=dtype)
            with _Products() as products:
                function(a, b)
            count = len(products.matrices)
            assert count == 1, f"it computes {count} matrix products, expected one"
            for name, matrix, sides in zip("ab", products.matrices[0], ((m, k), (k, n))):
                size, needed = matrix.shape[-1] * matrix.itemsize, -(-sides[1] * a.itemsize // 16)
                assert size % 16 == 0, (
                    f"{dtype}: a row of {name} has {matrix.shape[-1]} numbers, {size} bytes, "
                    f"expected a multiple of 16 bytes"
                )
                assert size == 16 * needed, (
                    f"{dtype}: a row of {name} has {size} bytes, but {16 * needed} are enough"
                )
            rows = products.matrices[0][0].shape[-2]
            assert rows == m, f"a has {rows} rows instead of {m}: its rows need not be more"
    return "each row has a multiple of 16 bytes, and no more than necessary"


def check_pruned(function: Prune) -> str:
    """Check which numbers of weights remain, for several shapes and types."""
    generator = torch.Generator().manual_seed(0)
    for shape in ((6, 8), (16, 16), (5, 20), (1, 4)):
        _check_pruned(function, torch.randn(shape, generator=generator))
    whole = torch.randperm(96, generator=generator) * torch.tensor([1, -1]).repeat(48)
    _check_pruned(function, whole.reshape(8, 12).bfloat16())  # all magnitudes differ
    return "right: in each four neighbours of a row, the two largest magnitudes remain"


def _check_pruned(function: Prune, weight: torch.Tensor) -> None:
    result = results.call(function, weight)
    assert isinstance(result, torch.Tensor) and result.shape == weight.shape, (
        f"expected a tensor of shape {(*weight.shape,)}, like the weight: reshape at the end"
    )
    assert result.dtype == weight.dtype, (
        f"the copy of a weight in {weight.dtype} is {result.dtype}: keep its type"
    )
    expected, kept = prune(weight), result != 0
    if torch.equal(result, expected):
        return
    mistakes = {
        "the two smallest magnitudes remain, not the largest": weight - expected,
        "-3 is larger than 2 in magnitude: compare absolute values": _keep(weight),
        "the four neighbours are in a column: take them from a row": prune(weight.t()).t(),
        "it returns which numbers remain: multiply the weight by that": (expected != 0).float(),
        "it returns magnitudes: keep each number's sign": expected.abs(),
    }
    for hint, wrong in mistakes.items():
        assert not torch.equal(result.float(), wrong.float()), hint
    assert kept.sum() == weight.numel() // 2, (
        f"{int(kept.sum())} of {weight.numel()} numbers remain, expected half of them"
    )
    counts = kept.reshape(-1, 4).sum(dim=1)
    assert (counts == 2).all(), (
        f"of the {len(counts)} groups of four, one keeps {int(counts[counts != 2][0])} numbers: "
        f"choose two in each group, not half of a row or of the weight"
    )
    at = int((result != expected).reshape(-1, 4).any(dim=1).nonzero()[0])
    old, new, right = (four.reshape(-1, 4)[at].tolist() for four in (weight, result, expected))
    raise AssertionError(
        f"each group of a weight of shape {(*weight.shape,)} keeps two numbers, but {old} becomes "
        f"{new}, expected {right}"
    )


def _keep(weight: torch.Tensor) -> torch.Tensor:
    """Return the weight with the two largest numbers of each four, by sign."""
    fours = weight.reshape(-1, 4)
    kept = fours.topk(2, dim=1).indices
    return torch.zeros_like(fours).scatter(1, kept, fours.gather(1, kept)).reshape(weight.shape)


def check_ties(function: Prune) -> str:
    """Check that no more than two of four equal numbers remain, and that any shape is accepted."""
    for shape in ((4,), (3, 4), (2, 16)):
        counts = (function(torch.ones(shape)) != 0).reshape(-1, 4).sum(dim=1)
        assert (counts == 2).all(), (
            f"of four equal numbers, {int(counts[0])} remain: Tensor Cores have room for two, so "
            f"choose two places instead of comparing with a threshold"
        )
    return "exactly two of four equal numbers remain, too"
