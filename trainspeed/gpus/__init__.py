"""Published specifications of NVIDIA's GPUs, with their sources."""

from __future__ import annotations

import re
from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
COLUMNS = {"fp32": "fp32", "tf32": "tf32", "bf16": "fp16", "fp16": "fp16"}  # of data sheets
# Words of names whose GPU is slower, or faster, than the one without them; 8Q is a virtual GPU.
VARIANT = re.compile(r"PCIE|NVL|MIG|LAPTOP|MOBILE|MAX|TI|SUPER|D|\d+[ABCQ]")


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
    gpu = find(name)
    if gpu is None:
        return {}
    columns = COLUMNS
    if gpu["architecture"] in ("Pascal", "Volta", "Turing"):  # no bf16
        columns = {kind: column for kind, column in columns.items() if kind != "bf16"}
    return {kind: 1e12 * gpu[column] for kind, column in columns.items() if gpu[column] > 0}


def find(name: str) -> pd.Series | None:
    """Return a GPU's row of the tables, by any name that contains its words; None without one.

    A variant, such as a laptop's GPU or a MIG slice, is only found if the table has a row for it.
    """
    variants = pd.read_csv(HERE / "variants.csv", index_col="gpu")
    table = pd.concat([summary(), cards(), variants])
    words = {*re.split(r"[\s-]+", name.upper())}
    matches = [gpu for gpu in table.index if set(gpu.upper().split()) <= words]
    gpu = max(matches, key=len, default="")
    if not gpu or any(VARIANT.fullmatch(word) for word in words - {*gpu.upper().split()}):
        return None
    return table.loc[gpu]
