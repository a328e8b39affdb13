"""The lab's four kernels, complete: what a learner's are measured beside.

Triton compiles a kernel for the GPU; with TRITON_INTERPRET=1 in the environment before it is
imported, it executes it in Python, program by program, on the CPU.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def add(x, y, out, size, BLOCK: tl.constexpr):  # noqa: N803 - Triton's way
    """out = x + y, of vectors; BLOCK numbers a program."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    tl.store(out + at, tl.load(x + at, inside) + tl.load(y + at, inside), inside)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):  # noqa: N803
    """exp(x − max) / sum, of each row of a matrix; a row a program, which fits in BLOCK."""
    at = tl.arange(0, BLOCK)
    inside = at < columns
    row = tl.program_id(0) * columns
    numbers = tl.load(x + row + at, inside, -float("inf")).to(tl.float32)
    powers = tl.exp(numbers - tl.max(numbers, 0))
    tl.store(out + row + at, powers / tl.sum(powers, 0), inside)


@triton.jit
def norm_relu(x, scale, shift, out, rows, channels, ROWS: tl.constexpr, BLOCK: tl.constexpr):  # noqa: N803
    """out = max(0, scale · x + shift) of a matrix (rows, channels), each channel with its own two.

    ROWS rows a program, whose channels fit in BLOCK: scale and shift are read once for all of them.
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
    """The tile of a matrix (height, width) at these rows and columns; beyond its edges it is 0."""
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    return tl.load(matrix + rows[:, None] * width + columns[None, :], inside, 0.0)


@triton.jit
def store_tile(matrix, rows, columns, height, width, tile):
    """Write a tile there, as far as it lies in the matrix."""
    inside = (rows[:, None] < height) & (columns[None, :] < width)
    tl.store(matrix + rows[:, None] * width + columns[None, :], tile, inside)


@triton.jit
def matmul(a, b, c, M, N, K, SIDE: tl.constexpr):  # noqa: N803
    """c = a · b, of (M, K) and (K, N), rows one after the other; a square tile of c a program."""
    rows = tl.program_id(0) * SIDE + tl.arange(0, SIDE)
    columns = tl.program_id(1) * SIDE + tl.arange(0, SIDE)
    total = tl.zeros((SIDE, SIDE), tl.float32)
    for begin in range(0, K, SIDE):
        inner = begin + tl.arange(0, SIDE)
        left, right = load_tile(a, rows, inner, M, K), load_tile(b, inner, columns, K, N)
        total = tl.dot(left, right, total)
    store_tile(c, rows, columns, M, N, total)


@triton.jit
def matmul_tuned(
    a,
    b,
    c,
    M,
    N,
    K,
    TALL: tl.constexpr,
    WIDE: tl.constexpr,
    DEEP: tl.constexpr,
    GROUP: tl.constexpr,
):
    """The same with a tile of three sizes, and neighbours in an order that shares what L2 holds.

    GROUP rows of tiles are gone through column by column (Triton's tutorial on products does so).
    """
    tall, wide = tl.cdiv(M, TALL), tl.cdiv(N, WIDE)
    place = tl.program_id(0)
    first = place // (GROUP * wide) * GROUP
    height = tl.minimum(tall - first, GROUP)
    rows = (first + place % (GROUP * wide) % height) * TALL + tl.arange(0, TALL)
    columns = place % (GROUP * wide) // height * WIDE + tl.arange(0, WIDE)
    total = tl.zeros((TALL, WIDE), tl.float32)
    for begin in range(0, K, DEEP):
        inner = begin + tl.arange(0, DEEP)
        left, right = load_tile(a, rows, inner, M, K), load_tile(b, inner, columns, K, N)
        total = tl.dot(left, right, total)
    store_tile(c, rows, columns, M, N, total)
