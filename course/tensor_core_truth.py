"""The verdict by name held against hardware counters, for whole training steps of a machine.

recorded/MACHINE/ncu.csv has what Nsight Compute counted in one training step of each setting
(benchmarks/tensor_core_truth.py makes it). `compare` puts the verdict of each name beside it.
"""

from __future__ import annotations

import csv
import ctypes
from pathlib import Path

import numpy as np
import pandas as pd

from course import trace
from course.recordings import trace_path
from course.runs import RECORDED
from course.tensor_core_rules import NONE, NOT, SURE, UNKNOWN, USED, classify
from course.trace_nsight import UNITS

FILE = "ncu.csv"
LARGE = 0.005  # of a step: a kernel that takes a larger share must be judged right
COUNTERS = ("hmma", "hfma2", "gmma")
COLUMNS = ["kernel", "setting", "count", "seconds", "share", "tensor_active", *COUNTERS]
LONGEST = 1024
RIGHT, WRONG, UNCLEAR = "right", "wrong", "unclear"
NOTES = """\
What ncu counted in one training step of ResNet-50, by kernel and setting (batch 256, 224 px).
kernel         as PyTorch's profiler names it; empty: that of the line above
count, seconds launches, and their time under ncu, one after another; share: of its setting's step
tensor_active  share of the cycles in which the Tensor Cores' pipe was busy, in the busiest launch
hmma           warps' instructions to that pipe, hfma2 among them: two ordinary multiply-adds in
               fp16, no matrix product. gmma: Hopper's products by groups of warps"""


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
    return table.reindex(columns=["kernel", "duration_s", "tensor_active", *COUNTERS])


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
        count=("duration_s", "size"), seconds=("duration_s", "sum"),
        tensor_active=("tensor_active", "max"),
    )  # fmt: skip
    table = table.join(groups[list(COUNTERS)].sum(min_count=1)).reset_index()
    table["share"] = table["seconds"] / table["seconds"].sum()
    return table.assign(setting=setting)[COLUMNS]


def write_counters(path: Path, table: pd.DataFrame, origin: list[str]) -> None:
    """Write a machine's ncu.csv.

    Args:
        table: COLUMNS, one row a kernel and setting.
        origin: lines about machine, versions, date and command, put at the top.
    """
    table = table.astype({name: "Int64" for name in ("count", *COUNTERS)})
    table = table.sort_values(["kernel", "setting"], kind="stable")[COLUMNS]
    # Names are most of the bytes, and settings share many of them.
    table["kernel"] = table["kernel"].mask(table["kernel"].eq(table["kernel"].shift()), "")
    head = "".join(f"# {line}\n" for line in [*NOTES.splitlines(), *origin])
    path.write_text(head + table.to_csv(index=False, float_format="%.4g"))


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
    lines = path.read_text().splitlines()
    head = [line[2:] for line in lines if line.startswith("# ")]
    table = pd.read_csv(path, skiprows=len(head))
    if list(table.columns) != COLUMNS:
        raise ValueError(f"{path} has columns {list(table.columns)}; they must be {COLUMNS}")
    table["kernel"] = table["kernel"].ffill()
    table = table.sort_values(["setting", "seconds"], ascending=[True, False], ignore_index=True)
    table.attrs["origin"] = "\n".join(head)
    return table


def truth(counted: pd.DataFrame) -> pd.Series:
    """By kernel what the counters show: "used", "not", or "unclear".

    Instructions decide where they were counted: what is left of hmma without hfma2, and gmma.
    Else the share of busy cycles does, and between `NONE` and `SURE` it shows nothing. All
    settings count together, since a kernel of one name is one machine code.
    """
    products = counted["hmma"] - counted["hfma2"] + counted["gmma"].fillna(0)
    by_name = pd.DataFrame({
        "products": products, "active": counted["tensor_active"],
    }).groupby(counted["kernel"]).max()  # fmt: skip
    instructions = by_name["products"].map(lambda found: USED if found > 0 else NOT)
    active = by_name["active"]
    cycles = np.select([active >= SURE, active <= NONE], [USED, NOT], UNCLEAR)
    return instructions.where(by_name["products"].notna(), cycles)


def compare(machine: str = "nvidia-h100", path: Path | None = None) -> pd.DataFrame:
    """Every kernel of every setting, its counters, its truth and the verdict of its name.

    Columns: those of `read_counters`; trace_share, of the step in PyTorch's own trace, NaN where
    no trace of the setting is recorded; largest, the larger of both shares; truth (`truth`);
    verdict, of `classify`; result: "right", "wrong", "unknown" where no rule decides, "unclear"
    where no counter does. A kernel that only the trace has is there with its trace_share.

    Args:
        machine: whose recorded traces are put beside the counters.
        path: another ncu.csv than the machine's.

    Raises:
        ValueError: the machine has none, or it is no such file.
    """
    counted = read_counters(path or RECORDED / machine / FILE)
    traces = pd.concat([_trace_shares(machine, name) for name in counted["setting"].unique()])
    table = counted.merge(traces, on=["setting", "kernel"], how="outer")
    table["largest"] = table[["share", "trace_share"]].max(axis=1)
    table["truth"] = table["kernel"].map(truth(counted)).fillna(UNCLEAR)
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
        table = trace.by_kernel(trace.read(path))
        names, shares = table["name"], table["share"]
    columns = {"kernel": names, "setting": setting, "trace_share": shares}
    return pd.DataFrame(columns).astype({"kernel": object, "trace_share": float})


def summary(compared: pd.DataFrame) -> pd.DataFrame:
    """How right the names were, one row a setting.

    Columns: setting; gpu_s, of its step, the slowest first; kernels; large, those with more than
    `LARGE` of the step by ncu or by the trace, and of these right, wrong, unknown and unclear;
    right_share, of the step in kernels judged right; used_by_name and used_by_counter, of the
    step in kernels that used the Tensor Cores; matched_share, of the trace's time in kernels
    that ncu saw too (NaN without a trace).
    """
    rows = []
    for setting, group in compared.groupby("setting", sort=False):
        large = group.loc[group["largest"] > LARGE, "result"].value_counts()
        share = group["share"].fillna(0)
        traced = group["trace_share"].where(group["share"].notna())
        rows.append({
            "setting": setting, "gpu_s": group["seconds"].sum(), "kernels": len(group),
            "large": int(large.sum()),
            **{name: int(large.get(name, 0)) for name in (RIGHT, WRONG, UNKNOWN, UNCLEAR)},
            "right_share": share[group["result"] == RIGHT].sum(),
            "used_by_name": share[group["verdict"] == USED].sum(),
            "used_by_counter": share[group["truth"] == USED].sum(),
            "matched_share": traced.sum() if group["trace_share"].notna().any() else np.nan,
        })  # fmt: skip
    return pd.DataFrame(rows).sort_values("gpu_s", ascending=False, ignore_index=True)


def doubtful(compared: pd.DataFrame) -> pd.DataFrame:
    """What is to be looked at, largest first: not judged right, or between `NONE` and `SURE`."""
    between = compared["tensor_active"].between(NONE, SURE, inclusive="neither")
    table = compared[(compared["result"] != RIGHT) | between]
    return table.sort_values("largest", ascending=False, ignore_index=True)
