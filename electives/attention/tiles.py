"""Attention in PyTorch: one tile of keys after another, with a running softmax.

Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018, arXiv:1805.02867, is the
softmax; Dao et al., "FlashAttention", 2022, arXiv:2205.14135, adds the product with the values.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, int], torch.Tensor]


def online_softmax_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int
) -> torch.Tensor:
    """Compute causal attention of tensors (batch, heads, tokens, D) from tiles of `block` keys."""
    tokens, width = q.shape[-2:]
    top = q.new_full((*q.shape[:-1], 1), -math.inf)
    total, out = torch.zeros_like(top), torch.zeros_like(q)
    query = torch.arange(tokens, device=q.device)[:, None]
    for begin in range(0, tokens, block):
        key = torch.arange(begin, min(begin + block, tokens), device=q.device)
        scores = q @ k[..., key, :].transpose(-1, -2) / math.sqrt(width)
        scores = scores.masked_fill(key > query, -math.inf)
        new_top = torch.maximum(top, scores.amax(-1, keepdim=True))
        shrink, powers = (top - new_top).exp(), (scores - new_top).exp()
        total = total * shrink + powers.sum(-1, keepdim=True)
        out = out * shrink + powers @ v[..., key, :]
        top = new_top
    return out / total
