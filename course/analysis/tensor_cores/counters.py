"""Compare the verdicts by name with counters and machine code, for full steps of a machine.

recordings/MACHINE/traces/ncu.csv has what Nsight Compute counted in one training step of each
setting (research/tensor_cores.py writes it). sass.csv, next to it, has what the kernels' machine
code contains (research/machine_code.py).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

from course.analysis.tensor_cores.rules import NOT, UNKNOWN, USED, classify
from course.analysis.tensor_cores.scores import read_commented
from course.analysis.traces import tables
from course.runs.recordings import trace_folder, trace_path

COUNTERS_FILE, SASS_FILE = "ncu.csv", "sass.csv"
LARGE = 0.005  # of a step: a kernel with a larger share must be judged right
# With a share of busy cycles up to NONE a kernel has no product on Tensor Cores, and from SURE on
# it has. Between them it is unclear: on an H100 a pointwise GELU kept the pipe busy for 12 % of
# the cycles, and the product of two small matrices for 1 %.
NONE, SURE = 0.005, 0.15
COLUMNS = ["kernel", "setting", "count", "seconds", "share", "tensor_active"]
SASS_COLUMNS = ["kernel", "library", "instructions", "mma", "hfma2_mma", "constants"]
RIGHT, WRONG, UNCLEAR = "right", "wrong", "unclear"
CYCLES, CODE = "cycles", "code"  # the evidence for a kernel's truth


def read_counters(path: Path) -> pd.DataFrame:
    """Read an ncu.csv: COLUMNS, longest first within each setting."""
    if not path.is_file():
        raise ValueError(
            f"{path}: no such file; make one on a machine with a GPU and ncu: "
            f"python -m research.tensor_cores OUT.jsonl"
        )
    table = read_commented(path)
    table["kernel"] = table["kernel"].ffill()
    return table.sort_values(["setting", "seconds"], ascending=[True, False], ignore_index=True)


def read_sass(path: Path) -> pd.DataFrame:
    """Read a sass.csv: SASS_COLUMNS; no rows if there is no such file."""
    if not path.is_file():
        return pd.DataFrame(columns=SASS_COLUMNS)
    return read_commented(path).fillna({"mma": ""})


def decide_truth(counters: pd.DataFrame, code: pd.DataFrame) -> pd.DataFrame:
    """Decide for each kernel the truth, "used", "not" or "unclear", and its evidence.

    The share of busy cycles decides where it is sure ("cycles"); between `NONE` and `SURE` the
    machine code does ("code"), if it was read. All settings count together, because kernels of
    the same name have the same machine code.
    """
    active = counters.groupby("kernel")["tensor_active"].max()
    mma = code.set_index("kernel")["mma"].reindex(active.index)
    by_cycles = np.select([active >= SURE, active <= NONE], [USED, NOT], UNCLEAR)
    by_code = np.select([mma.isna(), mma == ""], [UNCLEAR, NOT], USED)
    sure = by_cycles != UNCLEAR
    evidence = np.select([sure, by_code != UNCLEAR], [CYCLES, CODE], "")
    columns = {"truth": np.where(sure, by_cycles, by_code), "evidence": evidence}
    return pd.DataFrame(columns, index=active.index)


def compare_with_counters(machine: str = "nvidia-h100") -> pd.DataFrame:
    """Compare the verdict of each kernel's name with its truth, in every setting.

    Columns: those of `read_counters`; trace_share, of the step in PyTorch's own trace, NaN if
    no trace of the setting is recorded; largest, the larger of both shares; truth and evidence
    (`decide_truth`); verdict, of `classify`; result: "right", "wrong", "unknown" if no rule
    decides, "unclear" without evidence. A kernel that only the trace has is listed, too.

    Args:
        machine: whose recorded traces are compared.

    Raises:
        ValueError: there is no such file.
    """
    path = trace_folder(machine) / COUNTERS_FILE
    counters = read_counters(path)
    traces = pd.concat([_trace_shares(machine, name) for name in counters["setting"].unique()])
    table = counters.merge(traces, on=["setting", "kernel"], how="outer")
    table["largest"] = table[["share", "trace_share"]].max(axis=1)
    table = table.join(decide_truth(counters, read_sass(path.with_name(SASS_FILE))), on="kernel")
    table = table.fillna({"truth": UNCLEAR, "evidence": ""})
    table["verdict"] = verdict = [classify(name).verdict for name in table["kernel"]]
    cases = [table["verdict"] == UNKNOWN, table["truth"] == UNCLEAR, table["truth"] == verdict]
    table["result"] = np.select(cases, [UNKNOWN, UNCLEAR, RIGHT], WRONG)
    return table.sort_values(["setting", "largest"], ascending=[True, False], ignore_index=True)


def _trace_shares(machine: str, setting: str) -> pd.DataFrame:
    """Return each kernel's share of the GPU's time in a recorded trace; no rows without one."""
    columns = {"kernel": object, "setting": object, "trace_share": float}
    try:
        path = trace_path(machine, setting)
    except ValueError:
        return pd.DataFrame(columns=columns).astype(columns)
    table = tables.by_kernel(tables.read(path)).assign(setting=setting)
    return table.rename(columns={"name": "kernel", "share": "trace_share"})[[*columns]]


def summarize_verdicts(compared: pd.DataFrame) -> pd.DataFrame:
    """Count the right verdicts of each setting, the slowest first.

    Columns: setting; gpu_s, of its step; kernels; large, those with more than
    `LARGE` of the step by ncu or by the trace, and of these right, wrong, unknown and unclear;
    by_code, those whose truth the machine code shows; right_share, of the step in kernels judged
    right; used_by_name and used_in_truth, of the step in kernels that used the Tensor Cores;
    matched_share, of the trace's time in kernels that ncu saw, too (NaN without a trace).
    """
    rows = []
    for setting, group in compared.groupby("setting", sort=False):
        large = group[group["largest"] > LARGE]
        share = group["share"].fillna(0)
        traced = group["trace_share"].where(group["share"].notna())
        rows.append(
            {
                "setting": setting,
                "gpu_s": group["seconds"].sum(),
                "kernels": len(group),
                "large": len(large),
                **{r: (large["result"] == r).sum() for r in (RIGHT, WRONG, UNKNOWN, UNCLEAR)},
                "by_code": (large["evidence"] == CODE).sum(),
                "right_share": share[group["result"] == RIGHT].sum(),
                "used_by_name": share[group["verdict"] == USED].sum(),
                "used_in_truth": share[group["truth"] == USED].sum(),
                "matched_share": traced.sum() if group["trace_share"].notna().any() else np.nan,
            }
        )
    return pd.DataFrame(rows).sort_values("gpu_s", ascending=False, ignore_index=True)
