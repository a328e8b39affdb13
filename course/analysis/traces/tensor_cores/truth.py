"""The verdict by name held against counters and machine code, for whole steps of a machine.

recordings/MACHINE/traces/ncu.csv has what Nsight Compute counted in one training step of each
setting (research/tensor_cores.py makes it), sass.csv beside it what the kernels' machine code holds
(research/machine_code.py). `compare` puts the verdict of each name beside both.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from course.analysis.traces import tables
from course.analysis.traces.tensor_cores.rules import NONE, NOT, SURE, UNKNOWN, USED, classify
from course.runs.recordings import trace_folder, trace_path

FILE, SASS = "ncu.csv", "sass.csv"
LARGE = 0.005  # of a step: a kernel that takes a larger share must be judged right
COLUMNS = ["kernel", "setting", "count", "seconds", "share", "tensor_active"]
SASS_COLUMNS = ["kernel", "library", "instructions", "mma", "hfma2_mma", "constants"]
RIGHT, WRONG, UNCLEAR = "right", "wrong", "unclear"
CYCLES, CODE = "cycles", "code"  # what shows the truth about a kernel


def _read(path: Path, columns: list[str]) -> pd.DataFrame:
    """The table with its head as `attrs["origin"]`; ValueError: it has other columns."""
    lines = path.read_text().splitlines()
    head = [line[2:] for line in lines if line.startswith("# ")]
    table = pd.read_csv(path, skiprows=len(head))
    if list(table.columns) != columns:
        raise ValueError(f"{path} has columns {list(table.columns)}; they must be {columns}")
    table.attrs["origin"] = "\n".join(head)
    return table


def read_counters(path: Path) -> pd.DataFrame:
    """The rows of an ncu.csv: COLUMNS, longest first within each setting.

    Its `attrs["origin"]` is the text at the file's top, which names the machine.

    Raises:
        ValueError: no such file, or one with other columns.
    """
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file; make one on a machine with a GPU and ncu: "
            f"python -m research.tensor_cores OUT.jsonl"
        )
    table = _read(path, COLUMNS)
    table["kernel"] = table["kernel"].ffill()
    return table.sort_values(["setting", "seconds"], ascending=[True, False], ignore_index=True)


def read_sass(path: Path) -> pd.DataFrame:
    """The rows of a sass.csv: SASS_COLUMNS; none where there is no such file.

    Raises:
        ValueError: it has other columns.
    """
    if not path.is_file():
        return pd.DataFrame(columns=SASS_COLUMNS)
    return _read(path, SASS_COLUMNS).fillna({"mma": ""})


def truth(counted: pd.DataFrame, code: pd.DataFrame) -> pd.DataFrame:
    """By kernel the truth, "used", "not" or "unclear", and what shows it: evidence.

    The share of busy cycles decides where it is sure ("cycles"); between `NONE` and `SURE` the
    machine code does ("code"), if it was read. All settings count together, since a kernel of one
    name is one machine code.
    """
    active = counted.groupby("kernel")["tensor_active"].max()
    mma = code.set_index("kernel")["mma"].reindex(active.index)
    cycles = np.select([active >= SURE, active <= NONE], [USED, NOT], UNCLEAR)
    products = np.select([mma.isna(), mma == ""], [UNCLEAR, NOT], USED)
    sure = cycles != UNCLEAR
    return pd.DataFrame(
        {
            "truth": np.where(sure, cycles, products),
            "evidence": np.select([sure, products != UNCLEAR], [CYCLES, CODE], ""),
        },
        index=active.index,
    )


def compare(machine: str = "nvidia-h100", path: Path | None = None) -> pd.DataFrame:
    """Every kernel of every setting, its counters, its truth and the verdict of its name.

    Columns: those of `read_counters`; trace_share, of the step in PyTorch's own trace, NaN where
    no trace of the setting is recorded; largest, the larger of both shares; truth and evidence
    (`truth`); verdict, of `classify`; result: "right", "wrong", "unknown" where no rule decides,
    "unclear" where nothing shows the truth. A kernel that only the trace has is there with its
    trace_share.

    Args:
        machine: whose recorded traces are put beside the counters.
        path: another ncu.csv than the machine's; a sass.csv beside it is read too.

    Raises:
        ValueError: the machine has none, or it is no such file.
    """
    path = path or trace_folder(machine) / FILE
    counted = read_counters(path)
    traces = pd.concat([_trace_shares(machine, name) for name in counted["setting"].unique()])
    table = counted.merge(traces, on=["setting", "kernel"], how="outer")
    table["largest"] = table[["share", "trace_share"]].max(axis=1)
    table = table.join(truth(counted, read_sass(path.with_name(SASS))), on="kernel")
    table = table.fillna({"truth": UNCLEAR, "evidence": ""})
    table["verdict"] = [classify(name).verdict for name in table["kernel"]]
    said, shown = table["verdict"], table["truth"]
    known = [said == UNKNOWN, shown == UNCLEAR, said == shown]
    table["result"] = np.select(known, [UNKNOWN, UNCLEAR, RIGHT], WRONG)
    table = table.sort_values(["setting", "largest"], ascending=[True, False], ignore_index=True)
    table.attrs["origin"] = counted.attrs["origin"]
    return table


def _trace_shares(machine: str, setting: str) -> pd.DataFrame:
    """By kernel its share of the GPU's time in a recorded trace; no rows where there is none."""
    try:
        path = trace_path(machine, setting)
    except ValueError:
        names, shares = [], []
    else:
        table = tables.by_kernel(tables.read(path))
        names, shares = table["name"], table["share"]
    columns = {"kernel": names, "setting": setting, "trace_share": shares}
    return pd.DataFrame(columns).astype({"kernel": object, "trace_share": float})


def summary(compared: pd.DataFrame) -> pd.DataFrame:
    """How right the names were, one row a setting.

    Columns: setting; gpu_s, of its step, the slowest first; kernels; large, those with more than
    `LARGE` of the step by ncu or by the trace, and of these right, wrong, unknown and unclear;
    by_code, of these those whose truth the machine code shows; right_share, of the step in kernels
    judged right; used_by_name and used_in_truth, of the step in kernels that used the Tensor
    Cores; matched_share, of the trace's time in kernels that ncu saw too (NaN without a trace).
    """
    rows = []
    for setting, group in compared.groupby("setting", sort=False):
        big = group[group["largest"] > LARGE]
        large = big["result"].value_counts()
        share = group["share"].fillna(0)
        traced = group["trace_share"].where(group["share"].notna())
        rows.append(
            {
                "setting": setting,
                "gpu_s": group["seconds"].sum(),
                "kernels": len(group),
                "large": len(big),
                **{name: int(large.get(name, 0)) for name in (RIGHT, WRONG, UNKNOWN, UNCLEAR)},
                "by_code": int((big["evidence"] == CODE).sum()),
                "right_share": share[group["result"] == RIGHT].sum(),
                "used_by_name": share[group["verdict"] == USED].sum(),
                "used_in_truth": share[group["truth"] == USED].sum(),
                "matched_share": traced.sum() if group["trace_share"].notna().any() else np.nan,
            }
        )
    return pd.DataFrame(rows).sort_values("gpu_s", ascending=False, ignore_index=True)
