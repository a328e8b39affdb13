"""Formulas for sharding: the memory of each rank, and the bytes that it sends."""

from __future__ import annotations

import pandas as pd

# Bytes per weight in fp32: the weight, its gradient, and AdamW's two means.
BYTES = {"weights": 4, "gradients": 4, "optimizer": 8}
SHARDED = ((), ("optimizer",), ("optimizer", "gradients"), tuple(BYTES))  # by ZeRO stage


def zero_memory(parameters: int, ranks: int) -> pd.DataFrame:
    """Compute the GiB that each rank keeps between steps, without activations.

    Columns: stage (0 is DDP), kind, gib. From Rajbhandari et al. 2020, ZeRO (arXiv:1910.02054,
    section 5), for weights in fp32 and AdamW.
    """
    rows = [
        (stage, kind, size * parameters / (ranks if kind in sharded else 1) / 2**30)
        for stage, sharded in enumerate(SHARDED)
        for kind, size in BYTES.items()
    ]
    return pd.DataFrame(rows, columns=["stage", "kind", "gib"])


def communication_volume(parameters: int, ranks: int) -> pd.DataFrame:
    """Compute the GB that each rank sends per step in fp32, under ddp, zero2 and zero3.

    An all-gather or a reduce-scatter of n bytes sends n (p − 1)/p from each of p ranks; an
    all-reduce is one of each.
    """
    counts = {"ddp": (0, 0, 2), "zero2": (1, 1, 0), "zero3": (2, 1, 0)}
    names = ["all-gather", "reduce-scatter", "all-reduce"]
    table = pd.DataFrame(counts, index=names).T * (4 * parameters * (ranks - 1) / ranks / 1e9)
    return table.assign(total=table.sum(axis=1))
