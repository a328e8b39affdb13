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


def labelled() -> pd.DataFrame:
    """Load the labelled kernels: kernel, truth, generation, evidence, library, part.

    The top of kernels_labelled.csv explains how they were chosen.
    """
    return read_commented(LABELLED)


def read_commented(path: Path) -> pd.DataFrame:
    """Read a CSV file whose first lines are comments; a cell without text is ""."""
    lines = path.read_text().splitlines()
    table = pd.read_csv(path, skiprows=sum(line.startswith("#") for line in lines))
    return table.fillna(dict.fromkeys(table.select_dtypes(exclude="number"), ""))
