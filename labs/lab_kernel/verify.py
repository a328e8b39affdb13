"""What the lab's four kernels must do: each look says what it saw, or asserts what is wrong.

All run on Triton's interpreter, which sees each number that is read or written.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from labs.lab_kernel import launch
from labs.lab_kernel.interpreter import Moved, counting

Kernel = Any
SIZES = (1000, 256, 1, 513)  # of vectors; a block has 256
SHAPES = ((20, 100), (3, 128), (9, 1))  # of matrices
PRODUCTS = ((48, 32, 64), (50, 40, 70), (5, 3, 2))  # M, N, K; a tile has 16


def watched(run: Callable[..., torch.Tensor], kernel: Kernel, **given: torch.Tensor) -> Any:
    """What a launch of the kernel computes, and what it moves; it may touch nothing else."""
    first = next(iter(given.values()))
    shape = (len(first), given["b"].shape[1]) if "b" in given else first.shape
    out = launch.unwritten(shape, first.float())
    # Each in memory of its own, or beyond the end of one would be in the next.
    given = {name: each.clone() for name, each in given.items()}
    with np.errstate(all="ignore"), counting(**given, out=out) as moved:
        run(kernel, **given, out=out)
    return out, moved


def _written(out: torch.Tensor, what: str) -> None:
    missing = int(out.isnan().sum())
    assert not missing, f"{what}: {missing} of {out.numel()} results are NaN, or never written"


def adds(kernel: Kernel) -> str:
    """Is every sum right, at each length, and nothing else touched?"""
    for size in SIZES:
        x, y = _random(2, size)
        out, _ = watched(launch.add, kernel, x=x, y=y)
        _written(out, f"{size} numbers")
        wrong = int((out != x + y).sum())
        assert not wrong, (
            f"{size} numbers: {wrong} sums are wrong. Each program begins where the one before it "
            f"ends: at program_id · BLOCK"
        )
    return f"all sums are right, of {', '.join(map(str, SIZES))} numbers in blocks of 256"


def adds_once(kernel: Kernel) -> str:
    """Is every number read once, and every sum written once?"""
    x, y = _random(2, 1000)
    _, moved = watched(launch.add, kernel, x=x, y=y)
    return _no_more(moved, 8 * 1000, 4 * 1000)


def _no_more(moved: Moved, read: int, written: int) -> str:
    for word, found, needed in (("read", moved.read, read), ("written", moved.written, written)):
        assert found <= needed, (
            f"{found:,} bytes are {word}, and {needed:,} are enough: each number once"
        )
    return f"{moved.bytes:,} bytes moved by {moved.programs} programs, which is the least there is"


def is_softmax(kernel: Kernel) -> str:
    """Is every row right, also where powers would be infinite, and where a row is no full block?"""
    for shape in SHAPES:
        for far in (0.0, 200.0):
            x = _random(*shape) + far
            out, _ = watched(launch.softmax, kernel, x=x)
            sums = out.sum(dim=1)
            assert not (far and out.isnan().any()), (
                "around 200 the results are NaN, since exp(200) is infinite: subtract the row's "
                "largest number first"
            )
            _written(out, f"rows of {shape[1]}")
            assert torch.allclose(sums, torch.ones_like(sums), atol=1e-5), (
                f"rows of {shape[1]} add up to {sums[0]:.4f} instead of 1: what stands in the "
                f"block beyond the row must have the power 0, so be −∞"
            )
            assert torch.allclose(out, x.softmax(1), atol=1e-6), (
                f"rows of {shape[1]} add up to 1, but are wrong: does a program read its own row?"
            )
    return "all rows are right: of 1, 100 and 128 numbers, around 0 and around 200"


def reads_rows_once(kernel: Kernel) -> str:
    """Is every number read once? A maximum, powers and a sum need no more."""
    x = _random(20, 100)
    _, moved = watched(launch.softmax, kernel, x=x)
    return _no_more(moved, 4 * x.numel(), 4 * x.numel())


def normalises(kernel: Kernel) -> str:
    """Is every number scaled and shifted by its own channel's, and 0 where it would be negative?"""
    for shape in SHAPES:
        x, (scale, shift) = _random(*shape), _random(2, shape[1])
        out, _ = watched(launch.norm_relu, kernel, x=x, scale=scale, shift=shift)
        _written(out, f"{shape[0]} rows of {shape[1]} channels")
        assert (out >= 0).all(), "some results are negative: `tl.maximum` of them and 0"
        linear = x * scale + shift
        assert torch.allclose(out, linear.relu(), atol=1e-5), (
            f"{shape[0]} rows of {shape[1]} channels are wrong: a place is its row · channels + "
            f"its channel, and a number is scaled *before* it is shifted"
        )
    return "all numbers are right, of 1, 100 and 128 channels"


def reads_channels_once(kernel: Kernel) -> str:
    """Are scale and shift read once a program, and all else once?"""
    x, (scale, shift) = _random(20, 100), _random(2, 100)
    _, moved = watched(launch.norm_relu, kernel, x=x, scale=scale, shift=shift)
    programs = launch.blocks(20, launch.ROWS)
    return _no_more(moved, 4 * x.numel() + programs * 8 * 100, 4 * x.numel())


def multiplies(kernel: Kernel) -> str:
    """Is the product right, also where tiles reach over the edges, and where sums get large?"""
    large = torch.full((16, 64), 100.0).half()
    out, _ = watched(launch.matmul, kernel, a=large, b=large.t().contiguous())
    assert not out.isinf().any(), "sums beyond 65,504 are infinite: add up in fp32"
    for m, n, k in PRODUCTS:
        a, b = _random(m, k).half(), _random(k, n).half()
        out, _ = watched(launch.matmul, kernel, a=a, b=b)
        _written(out, f"({m}, {k}) · ({k}, {n})")
        right = a.float() @ b.float()
        last = (k - 1) // launch.SIDE * launch.SIDE
        rest = a[:, last:].float() @ b[last:].float()
        assert k <= launch.SIDE or not torch.allclose(out, rest, atol=1e-3), (
            "it is the product of the last tiles alone: add to what `total` holds"
        )
        assert torch.allclose(out, right, atol=1e-3), (
            f"({m}, {k}) · ({k}, {n}) is wrong: `inner` goes on with `begin`, `total` is added to"
        )
    return "all products are right, with tiles over the edges, and sums beyond fp16's range"


def uses_dot(kernel: Kernel) -> str:
    """Are tiles multiplied by `tl.dot`, once each, and is every tile read once for it?"""
    m, n, k = PRODUCTS[1]
    a, b = _random(m, k).half(), _random(k, n).half()
    _, moved = watched(launch.matmul, kernel, a=a, b=b)
    side = launch.SIDE
    tiles = launch.blocks(m, side) * launch.blocks(n, side) * launch.blocks(k, side)
    assert moved.dots, "no `tl.dot`: without it there are no Tensor Cores"
    assert moved.dots == tiles, f"{moved.dots} times `tl.dot`, for {tiles} pairs of tiles"
    read = 2 * (m * k * launch.blocks(n, side) + k * n * launch.blocks(m, side))
    assert moved.read <= read, f"{moved.read:,} bytes are read, and {read:,} are each tile once"
    return f"{moved.dots} times `tl.dot`; {moved.bytes:,} bytes moved, each pair of tiles once"


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
