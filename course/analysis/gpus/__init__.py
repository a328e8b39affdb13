"""What NVIDIA says its GPUs can do: published numbers, each with its source, and none measured."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent


def summary() -> pd.DataFrame:
    """A row a GPU in its SXM form (the T4 is a card), the index its name.

    Columns: architecture, year, sms (multiprocessors), memory_gb, tb_per_s (of the memory), watts,
    and the most TFLOP/s by format, on Tensor Cores where these have it, without sparsity: fp64,
    fp32 (ordinary cores), tf32, fp16 (bf16 as well, from Ampere on), fp8, fp4; source.
    """
    return pd.read_csv(HERE / "gpus.csv", index_col="gpu", dtype={"sms": "Int64"})


def precisions() -> pd.DataFrame:
    """Which formats an architecture multiplies on Tensor Cores, and which on ordinary ones."""
    return pd.read_csv(HERE / "precisions.csv", index_col="architecture")
