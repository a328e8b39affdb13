"""Checks of the lab's four kernels: each returns its evidence or asserts what is wrong.

All run on Triton's interpreter, which observes each number that is read or written.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
import triton

from electives.kernel import launch
from electives.kernel.interpreter import Traffic, count_traffic

Kernel = Any
SIZES = ((1000, 256), (256, 256), (1, 256), (513, 128), (600, 512))  # of vectors and blocks
SHAPES = ((20, 100), (3, 128), (9, 1))  # of matrices
UNWRITTEN = -123_456.0  # in `out` before a launch
PRODUCTS = ((48, 32, 64), (50, 40, 70), (5, 3, 37))  # M, N, K; a tile has 16 × 16


def _run(
    run: Callable[..., None], kernel: Kernel, **tensors: torch.Tensor
) -> tuple[torch.Tensor, Traffic]:
    """Return what a launch computes, and its traffic; it may not touch other memory."""
    first = next(iter(tensors.values()))
    shape = (len(first), tensors["b"].shape[1]) if "b" in tensors else first.shape
    out = torch.full(shape, UNWRITTEN)
    # In separate memory, so that an access beyond one tensor is not in the next.
    tensors = {name: tensor.clone() for name, tensor in tensors.items()}
    with np.errstate(all="ignore"), count_traffic(**tensors, out=out) as traffic:
        run(kernel, **tensors, out=out)
    return out, traffic


def _assert_complete(out: torch.Tensor, name: str) -> None:
    missing, nans = (out == UNWRITTEN).flatten(), int(out.isnan().sum())
    assert not missing.any(), (
        f"{name}: {int(missing.sum())} of {out.numel()} results are never written, the first of "
        f"them number {int(missing.nonzero()[0])}: at which offsets does each program store?"
    )
    assert not nans, (
        f"{name}: {nans} of {out.numel()} results are NaN, for instance from ∞ − ∞: what do masked "
        f"loads return?"
    )


def _assert_minimal(traffic: Traffic, read: int, written: int) -> str:
    for verb, actual, needed in (
        ("read", traffic.read, read),
        ("written", traffic.written, written),
    ):
        assert actual <= needed, (
            f"{actual:,} bytes are {verb}, and {needed:,} are enough: each number once"
        )
    moved, programs = traffic.read + traffic.written, len(traffic.programs)
    return f"{programs} programs moved {moved:,} bytes, which is the minimum"


def check_add(kernel: Kernel) -> str:
    """Check the sums of vectors of several lengths."""
    for size, block in SIZES:
        x, y = _random(2, size)
        out, _ = _run(partial(launch.add, block=block), kernel, x=x, y=y)
        _assert_complete(out, f"{size} numbers in blocks of {block}")
        wrong = int((out != x + y).sum())
        assert not wrong, (
            f"{size} numbers: {wrong} sums are wrong. Each program begins where the one before it "
            f"ends: at program_id · BLOCK"
        )
    return "all sums are right, of 1 to 1000 numbers in blocks of 128, 256 and 512"


def check_add_traffic(kernel: Kernel) -> str:
    """Check that each number is read once, and each sum written once."""
    x, y = _random(2, 1000)
    _, traffic = _run(launch.add, kernel, x=x, y=y)
    return _assert_minimal(traffic, 8 * 1000, 4 * 1000)


def check_softmax(kernel: Kernel) -> str:
    """Check each row, also with large numbers, and with rows that do not fill a block."""
    for shape in SHAPES:
        for offset, spread in ((0.0, 1), (200.0, 1), (-20_000.0, 1), (-60_000.0, 90)):
            x = spread * _random(*shape) + offset
            out, _ = _run(launch.softmax, kernel, x=x)
            sums = out.sum(dim=1)
            assert not (offset > 0 and out.isnan().any()), (
                "around 200 the results are NaN, because exp(200) is infinite: subtract the row's "
                "largest number first"
            )
            _assert_complete(out, f"rows of {shape[1]}")
            worst = float(sums[(sums - 1).abs().argmax()])
            assert abs(worst - 1) < 1e-5, (
                f"rows of {shape[1]} add up to {worst:.6g} instead of 1: what is in the block "
                f"beyond the row must have the power 0, so load −∞ there"
            )
            assert torch.allclose(out, x.softmax(1), atol=1e-6), (
                f"rows of {shape[1]} add up to 1, but are wrong: does a program read its row, and "
                f"is a power `tl.exp` of the number minus the maximum?"
            )
    return "all rows are right: of 1, 100 and 128 numbers, around 0, 200 and -60,000"


def check_softmax_traffic(kernel: Kernel) -> str:
    """Check that each number is read once, for the maximum, the powers and the sum together."""
    x = _random(20, 100)
    _, traffic = _run(launch.softmax, kernel, x=x)
    return _assert_minimal(traffic, x.nbytes, x.nbytes)


def check_norm_relu(kernel: Kernel) -> str:
    """Check that each number is scaled and shifted by channel, and 0 if it would be negative."""
    for shape in SHAPES:
        x, (scale, shift) = _random(*shape), _random(2, shape[1])
        out, _ = _run(launch.norm_relu, kernel, x=x, scale=scale, shift=shift)
        _assert_complete(out, f"{shape[0]} rows of {shape[1]} channels")
        assert (out >= 0).all(), (
            "some results are negative: ReLU comes last, `tl.maximum` of the shifted number and 0"
        )
        assert torch.allclose(out, (x * scale + shift).relu(), atol=1e-5), (
            f"{shape[0]} rows of {shape[1]} channels are wrong: an offset is row · channels + "
            f"channel, and a number is scaled *before* it is shifted"
        )
    return "all numbers are right, of 1, 100 and 128 channels"


def check_norm_relu_traffic(kernel: Kernel) -> str:
    """Check that scale and shift are read once per program, and all else once."""
    x, (scale, shift) = _random(20, 100), _random(2, 100)
    _, traffic = _run(launch.norm_relu, kernel, x=x, scale=scale, shift=shift)
    programs = triton.cdiv(20, launch.ROWS)
    return _assert_minimal(traffic, x.nbytes + programs * 2 * scale.nbytes, x.nbytes)


def check_matmul(kernel: Kernel) -> str:
    """Check products, also with tiles over the edges, and sums beyond fp16's range."""
    large = torch.full((16, 64), 100.0).half()
    out, _ = _run(launch.matmul, kernel, a=large, b=large.t().contiguous())
    assert not out.isinf().any(), "sums beyond 65,504 are infinite: add up in fp32"
    for (m, n, k), side in zip(PRODUCTS, (launch.SIDE, launch.SIDE, 2 * launch.SIDE)):
        a, b = _random(m, k).half(), _random(k, n).half()
        out, _ = _run(partial(launch.matmul, block=side), kernel, a=a, b=b)
        _assert_complete(out, f"({m}, {k}) · ({k}, {n})")
        last = (k - 1) // side * side
        last_tiles = a[:, last:].float() @ b[last:].float()
        assert k <= side or not torch.allclose(out, last_tiles, atol=1e-3), (
            "it is the product of the last tiles only: add to the value of `total`"
        )
        right = torch.allclose(out, a.float() @ b.float(), atol=1e-3)
        assert right or _multiplies_tiles(kernel), (
            f"({m}, {k}) · ({k}, {n}) is wrong, and so is the product of two single tiles: "
            f"`total` is tl.dot(left, right, total)"
        )
        assert right, (
            f"({m}, {k}) · ({k}, {n}) is wrong, but a product of two single tiles is right: in "
            f"each step, `inner` begins at `begin`, and one product is added to `total`"
        )
    return "all products are right, with tiles over the edges, and sums beyond fp16's range"


def _multiplies_tiles(kernel: Kernel) -> bool:
    """Return whether a product with a single step is right."""
    a, b = _random(2, launch.SIDE, launch.SIDE).half()
    out, _ = _run(launch.matmul, kernel, a=a, b=b)
    return torch.allclose(out, a.float() @ b.float(), atol=1e-3)


def check_dot(kernel: Kernel) -> str:
    """Check that `tl.dot` multiplies each pair of tiles once, and that each is read once for it."""
    m, n, k = PRODUCTS[1]
    _, traffic = _run(launch.matmul, kernel, a=_random(m, k).half(), b=_random(k, n).half())
    rows, columns, inner = (triton.cdiv(length, launch.SIDE) for length in (m, n, k))
    pairs, read = rows * columns * inner, 2 * (m * k * columns + k * n * rows)
    assert traffic.dots, "no `tl.dot`: without it there are no Tensor Cores"
    assert traffic.dots == pairs, f"{traffic.dots} times `tl.dot`, for {pairs} pairs of tiles"
    assert traffic.read <= read, f"{traffic.read:,} bytes are read; each tile once is {read:,}"
    return f"{traffic.dots} times `tl.dot`; {traffic.read:,} bytes read, each pair of tiles once"


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))
