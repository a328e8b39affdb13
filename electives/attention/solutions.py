"""The lab's Triton kernel: attention over tiles of keys, with the step that learners write.

Triton compiles kernels for the GPU; with TRITON_INTERPRET=1 in the environment before it is
imported, it executes them in Python, program by program, on the CPU. This file needs nothing else,
so that `gpu_timing.py` can load it, or a copy with a learner's step, by its path.
"""

# ruff: noqa: N803 - capitals are Triton's style

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl


@triton.jit
def load_rows(matrix, row, T, D: tl.constexpr):
    """Load these rows of a (T, D) matrix; 0 beyond its end."""
    inside = (row[:, None] < T) & (tl.arange(0, D)[None, :] < D)
    return tl.load(matrix + row[:, None] * D + tl.arange(0, D)[None, :], inside, 0.0)


@triton.jit
def add_tile(scores, values, top, total, result):
    """Add a tile of keys to a running softmax.

    scores: (queries, keys), −∞ where masked. values: (keys, D). top, total: (queries,), the
    largest score so far, and the sum of the exponentials. result: (queries, D), the sum of
    exponentials times values. Returns the three, updated.
    """
    new_top = tl.maximum(top, tl.max(scores, 1))
    shrink = tl.exp(top - new_top)
    powers = tl.exp(scores - new_top[:, None])
    total = total * shrink + tl.sum(powers, 1)
    result = result * shrink[:, None] + tl.dot(powers.to(values.dtype), values)
    return new_top, total, result


@triton.jit
def attend(q, k, v, out, T, scale, D: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """Compute causal attention for one tile of queries of one head."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    head = tl.program_id(1).to(tl.int64) * T * D
    queries = load_rows(q + head, row, T, D)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    result = tl.zeros((ROWS, D), tl.float32)
    end = tl.minimum((tl.program_id(0) + 1) * ROWS, T)  # later keys are masked for all queries
    for begin in range(0, end, BLOCK):
        key = begin + tl.arange(0, BLOCK)
        keys, values = load_rows(k + head, key, T, D), load_rows(v + head, key, T, D)
        scores = tl.dot(queries, tl.trans(keys)) * scale
        scores = tl.where(key[None, :] <= row[:, None], scores, float("-inf"))
        top, total, result = add_tile(scores, values, top, total, result)
    at = row[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(out + head + at, result / total[:, None], row[:, None] < T)


def launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    rows: int = 16,
    block: int = 16,
    **options: Any,
) -> None:
    """Launch `attend` for contiguous tensors (batch, heads, tokens, D); D is a power of two."""
    batch, heads, tokens, width = q.shape
    tile = {"D": width, "ROWS": rows, "BLOCK": block}
    grid = (triton.cdiv(tokens, rows), batch * heads)
    attend[grid](q, k, v, out, tokens, width**-0.5, **tile, **options)
