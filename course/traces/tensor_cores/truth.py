"""The verdict by name held against counters and machine code, for whole steps of a machine.

recorded/MACHINE/ncu.csv has what Nsight Compute counted in one training step of each setting
(benchmarks/tensor_core_truth.py makes it), sass.csv beside it what the kernels' machine code
holds (benchmarks/tensor_core_sass.py). `compare` puts the verdict of each name beside both.
"""

from __future__ import annotations

import csv
import ctypes
from pathlib import Path

import numpy as np
import pandas as pd

from course.runs.recordings import trace_path
from course.runs.run import RECORDED
from course.traces import tables
from course.traces.nsight import UNITS
from course.traces.tensor_cores.rules import NONE, NOT, SURE, UNKNOWN, USED, classify

FILE, SASS = "ncu.csv", "sass.csv"
LARGE = 0.005  # of a step: a kernel that takes a larger share must be judged right
COLUMNS = ["kernel", "setting", "count", "seconds", "share", "tensor_active"]
SASS_COLUMNS = ["kernel", "library", "instructions", "mma", "hfma2_mma", "constants"]
LONGEST = 1024
RIGHT, WRONG, UNCLEAR = "right", "wrong", "unclear"
CYCLES, CODE = "cycles", "code"  # what shows the truth about a kernel
NOTES = """\
What ncu counted in one training step of ResNet-50, by kernel and setting (batch 256, 224 px).
kernel         as PyTorch's profiler names it; empty: that of the line above
count, seconds launches, and their time under ncu, one after another; share: of its setting's step
tensor_active  share of cycles in which the Tensor Cores' pipe was busy, in the busiest launch"""


def launches(text: str, metrics: dict[str, str]) -> pd.DataFrame:
    """One row a launch of what `ncu --csv` printed: kernel, and a column for each metric.

    Args:
        text: of the details page, that is, with a line for each kernel and metric.
        metrics: ncu's names by those of the columns; durations become seconds, % become shares.

    Raises:
        ValueError: text without kernels.
    """
    lines = text.splitlines()
    first = next((at for at, line in enumerate(lines) if line.startswith('"ID"')), None)
    if first is None:
        raise ValueError(f"ncu printed no kernel, but: {text[-500:]}")
    keys = {metric: key for key, metric in metrics.items()}
    found: dict[str, dict] = {}
    rows = [row for row in csv.DictReader(lines[first:]) if row["ID"].isdigit()]
    for row in rows:  # ncu's own remarks, which may stand below, are left out
        launch = found.setdefault(row["ID"], {"kernel": row["Kernel Name"]})
        if key := keys.get(row["Metric Name"]):
            value = pd.to_numeric(row["Metric Value"].replace(",", ""), errors="coerce")
            launch[key] = value * (UNITS | {"%": 0.01}).get(row["Metric Unit"], 1)
    table = pd.DataFrame(found.values())
    return table.reindex(columns=["kernel", "duration_s", "tensor_active"])


def demangled(name: str) -> str:
    """A kernel's name as PyTorch's profiler writes it on Linux: as the C++ library spells it.

    The profiler leaves names of more than `LONGEST` characters as they are.
    """
    if len(name) > LONGEST:
        return name
    library = ctypes.CDLL("libstdc++.so.6")
    library.__cxa_demangle.restype = ctypes.c_void_p
    status = ctypes.c_int()
    found = library.__cxa_demangle(name.encode(), None, None, ctypes.byref(status))
    if not found:  # it was no mangled name
        return name
    text = ctypes.string_at(found).decode()
    ctypes.CDLL(None).free(ctypes.c_void_p(found))
    return text


def by_kernel(setting: str, rows: pd.DataFrame) -> pd.DataFrame:
    """Launches of one setting (`launches`, names mangled) summed up by kernel: COLUMNS."""
    groups = rows.assign(kernel=rows["kernel"].map(demangled)).groupby("kernel", sort=False)
    table = groups.agg(
        count=("duration_s", "size"),
        seconds=("duration_s", "sum"),
        tensor_active=("tensor_active", "max"),
    ).reset_index()
    table["share"] = table["seconds"] / table["seconds"].sum()
    return table.assign(setting=setting)[COLUMNS]


def write_counters(path: Path, table: pd.DataFrame, origin: list[str]) -> None:
    """Write a machine's ncu.csv.

    Args:
        table: COLUMNS, one row a kernel and setting.
        origin: lines about machine, versions, date and command, put at the top.
    """
    table = table.astype({"count": "Int64"})
    table = table.sort_values(["kernel", "setting"], kind="stable")[COLUMNS]
    # Names are most of the bytes, and settings share many of them.
    table["kernel"] = table["kernel"].mask(table["kernel"].eq(table["kernel"].shift()), "")
    write(path, table, [*NOTES.splitlines(), *origin])


def write(path: Path, table: pd.DataFrame, head: list[str]) -> None:
    """Write a table below lines that tell what it is and where it is from."""
    lines = "".join(f"# {line}\n" for line in head)
    path.write_text(lines + table.to_csv(index=False, float_format="%.4g"))


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
            f"python benchmarks/tensor_core_truth.py FOLDER"
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
    path = path or RECORDED / machine / FILE
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
