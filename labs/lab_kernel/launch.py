"""How each of the lab's kernels is launched: its grid, and what it is given.

`out` is written, and given back; without one, a tensor of NaN is made.
"""

from __future__ import annotations

from typing import Any

import torch

Kernel = Any  # what `triton.jit` makes of a function
BLOCK, ROWS, SIDE = 256, 8, 16
Out = torch.Tensor | None


def add(
    kernel: Kernel, x: torch.Tensor, y: torch.Tensor, out: Out = None, block: int = BLOCK
) -> torch.Tensor:
    """x + y, of two vectors."""
    out = unwritten(x.shape, x) if out is None else out
    kernel[(blocks(len(x), block),)](x, y, out, len(x), BLOCK=block)
    return out


def softmax(kernel: Kernel, x: torch.Tensor, out: Out = None) -> torch.Tensor:
    """The softmax of each row of a matrix."""
    out = unwritten(x.shape, x) if out is None else out
    rows, columns = x.shape
    kernel[(rows,)](x, out, columns, BLOCK=power_of_two(columns))
    return out


def norm_relu(
    kernel: Kernel, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, out: Out = None
) -> torch.Tensor:
    """max(0, scale · x + shift) of a matrix (rows, channels)."""
    out = unwritten(x.shape, x) if out is None else out
    rows, channels = x.shape
    tile = {"ROWS": ROWS, "BLOCK": power_of_two(channels)}
    kernel[(blocks(rows, ROWS),)](x, scale, shift, out, rows, channels, **tile)
    return out


def matmul(
    kernel: Kernel, a: torch.Tensor, b: torch.Tensor, out: Out = None, side: int = SIDE
) -> torch.Tensor:
    """a · b, added up in fp32; given in fp32, too, unless `out` says otherwise."""
    m, k, n = *a.shape, b.shape[1]
    out = unwritten((m, n), a.float()) if out is None else out
    kernel[(blocks(m, side), blocks(n, side))](a, b, out, m, n, k, SIDE=side)
    return out


def unwritten(shape: tuple[int, ...], like: torch.Tensor) -> torch.Tensor:
    """A tensor of NaN, so that it is seen what a kernel has not written."""
    return torch.full(shape, torch.nan, dtype=like.dtype, device=like.device)


def blocks(count: int, size: int) -> int:
    """So many blocks of a size hold the count: division, rounded up."""
    return -(-count // size)


def power_of_two(number: int) -> int:
    """The least power of two that is not smaller: sizes of Triton's blocks are powers of two."""
    return 1 << (number - 1).bit_length()
