"""Published specifications of NVIDIA's GPUs, with their sources."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
COLUMNS = {"fp32": "fp32", "tf32": "tf32", "bf16": "fp16", "fp16": "fp16"}  # of data sheets


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


def gpu_rates(name: str) -> dict[str, float]:
    """Return the rates of a GPU by its name; empty if it is not in the tables."""
    found = find(name)
    if found is None:
        return {}
    columns = COLUMNS
    if found["architecture"] in ("Pascal", "Volta", "Turing"):  # no bf16
        columns = {kind: column for kind, column in columns.items() if kind != "bf16"}
    return {kind: 1e12 * found[column] for kind, column in columns.items() if found[column] > 0}


def find(name: str) -> pd.Series | None:
    """Return a GPU's row of the tables, by any name that contains its words; None without one."""
    table = pd.concat([summary(), cards()])
    words = re.split(r"[\s-]+", name.upper())
    matches = [gpu for gpu in table.index if set(gpu.upper().split()) <= set(words)]
    if not matches or table.loc[max(matches, key=len)].ndim > 1:
        return None
    return table.loc[max(matches, key=len)]
