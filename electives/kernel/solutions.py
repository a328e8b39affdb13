"""The lab's four kernels, complete.

Triton compiles kernels for the GPU; with TRITON_INTERPRET=1 in the environment before it is
imported, it executes them in Python, program by program, on the CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, size, BLOCK: tl.constexpr):  # noqa: N803 - Triton's style
    """Compute out = x + y for vectors; each program adds BLOCK numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):  # noqa: N803
    """Compute exp(x − max) / sum for each row of a matrix; a program has one row, up to BLOCK."""
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.program_id(0) * columns
    numbers = tl.load(x + row + at, inside, -float("inf")).to(tl.float32)
    powers = tl.exp(numbers - tl.max(numbers, 0))
    tl.store(out + row + at, powers / tl.sum(powers, 0), inside)


@triton.jit
def norm_relu(x, scale, shift, out, rows, channels, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """Compute max(0, scale · x + shift) of a matrix (rows, channels), with a scale and a shift per
    channel.

    A program has ROWS rows and reads scale and shift once for all of them; BLOCK ≥ channels.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    channel = tl.arange(0, BLOCK)
    known = channel < channels
    factor, offset = tl.load(scale + channel, known), tl.load(shift + channel, known)
    at = row[:, None] * channels + channel[None, :]
    inside = (row[:, None] < rows) & known[None, :]
    numbers = tl.load(x + at, inside).to(tl.float32)
    numbers = tl.maximum(numbers * factor[None, :] + offset[None, :], 0.0)
    tl.store(out + at, numbers, inside)


@triton.jit
def load_tile(matrix, rows, columns, height, width):
    """Load the tile at these rows and columns of a (height, width) matrix; 0 beyond its edges."""
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    return tl.load(matrix + rows[:, None] * width + columns[None, :], inside, 0.0)


@triton.jit
def store_tile(matrix, rows, columns, height, width, tile):
    """Store the part of a tile that is inside of the matrix."""
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    tl.store(matrix + rows[:, None] * width + columns[None, :], tile, inside)


@triton.jit
def matmul(a, b, c, M, N, K, SIDE: tl.constexpr):  # noqa: N803
    """Multiply row-major matrices (M, K) and (K, N); a program computes a square tile of c."""
    rows = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    columns = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for begin in range(0, K, SIDE):
        inner = begin + tl.arange(0, SIDE)
        left, right = load_tile(a, rows, inner, M, K), load_tile(b, inner, columns, K, N)
        total = tl.dot(left, right, total)
    store_tile(c, rows, columns, M, N, total)
