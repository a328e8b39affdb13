"""Published specifications of NVIDIA's GPUs, with their sources."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent


def summary() -> pd.DataFrame:
    """Return a row per GPU in its SXM form (the T4 is a card), indexed by name.

    Columns: architecture, year, sms (multiprocessors), memory_gb, tb_per_s (of the memory), watts,
    source, and the peak TFLOP/s by format: fp64, fp32 (ordinary cores), tf32, fp16 (from Ampere
    on also bf16), fp8, fp4; on Tensor Cores if these support the format, without sparsity.
    """
    return pd.read_csv(HERE / "gpus.csv", index_col="gpu", dtype={"sms": "Int64"})


def cards() -> pd.DataFrame:
    """Return a row per consumer or server card, with the columns of `summary`.

    The fp16 and fp8 rates are those with sums in fp32, which training needs; on consumer cards,
    they are half of the rates with sums in fp16. fp64 rates are not listed: they are very low.
    """
    return pd.read_csv(HERE / "cards.csv", index_col="gpu", dtype={"sms": "Int64"})


def precisions() -> pd.DataFrame:
    """Return the formats of each architecture's Tensor Cores and ordinary cores."""
    return pd.read_csv(HERE / "precisions.csv", index_col="architecture")
