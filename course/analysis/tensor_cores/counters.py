"""Kernels whose use of the Tensor Cores is known: labelled ones, and steps that ncu counted.

kernels_labelled.csv has names of kernels with the evidence for each label.
recordings/MACHINE/traces/ncu.csv has what Nsight Compute counted in one training step of each
setting (research/tensor_cores.py writes it). sass.csv, next to it, has what the kernels' machine
code contains (research/machine_code.py).
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

LABELLED = Path(__file__).with_name("kernels_labelled.csv")
COUNTERS_FILE, SASS_FILE = "ncu.csv", "sass.csv"
COLUMNS = ["kernel", "setting", "count", "seconds", "share", "tensor_active"]
SASS_COLUMNS = ["kernel", "library", "instructions", "mma", "hfma2_mma", "constants"]


def labelled() -> pd.DataFrame:
    """Load the labelled kernels: kernel, truth, generation, evidence, library, part.

    The top of kernels_labelled.csv explains how they were chosen.
    """
    return _read_commented(LABELLED)


def read_counters(path: Path) -> pd.DataFrame:
    """Read an ncu.csv: COLUMNS, longest first within each setting."""
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file; make one on a machine with a GPU and ncu: "
            f"python -m research.tensor_cores OUT.jsonl"
        )
    table = _read_commented(path)
    table["kernel"] = table["kernel"].ffill()
    return table.sort_values(["setting", "seconds"], ascending=[True, False], ignore_index=True)


def read_sass(path: Path) -> pd.DataFrame:
    """Read a sass.csv: SASS_COLUMNS."""
    return _read_commented(path).fillna({"mma": ""})


def _read_commented(path: Path) -> pd.DataFrame:
    """Read a CSV file whose first lines are comments."""
    lines = path.read_text().splitlines()
    return pd.read_csv(path, skiprows=sum(line.startswith("#") for line in lines))
