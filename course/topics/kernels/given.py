"""The lab's four kernels, complete: what a learner's are measured beside.

Triton compiles a kernel for the GPU; with TRITON_INTERPRET=1 in the environment before it is
imported, it executes it in Python, program by program, on the CPU.
"""

from __future__ import annotations

import torch
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
def norm_relu(x, scale, shift, out, size, channels, BLOCK: tl.constexpr):  # noqa: N803
    """out = max(0, scale · x + shift), a scale and a shift for each channel; channels lie last."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < size
    channel = at % channels
    numbers = tl.load(x + at, inside).to(tl.float32)
    numbers = numbers * tl.load(scale + channel, inside) + tl.load(shift + channel, inside)
    tl.store(out + at, tl.maximum(numbers, 0.0), inside)


@triton.jit
def matmul(
    a, b, c, M, N, K,  # noqa: N803
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,  # noqa: N803
):  # fmt: skip
    """c = a · b, of (M, K) and (K, N), rows one after the other; a tile of c a program."""
    rows = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for begin in range(0, K, BLOCK_K):
        inner = begin + tl.arange(0, BLOCK_K)
        left = (rows[:, None] < M) & (inner[None, :] < K)
        right = (inner[:, None] < K) & (columns[None, :] < N)
        tile_a = tl.load(a + rows[:, None] * K + inner[None, :], left, 0.0)
        tile_b = tl.load(b + inner[:, None] * N + columns[None, :], right, 0.0)
        total = tl.dot(tile_a, tile_b, total)
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + rows[:, None] * N + columns[None, :], total, inside)


def folded(norm: torch.nn.BatchNorm2d) -> tuple[torch.Tensor, torch.Tensor]:
    """A BatchNorm in evaluation as a scale and a shift for each channel."""
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    return scale.detach(), (norm.bias - norm.running_mean * scale).detach()
