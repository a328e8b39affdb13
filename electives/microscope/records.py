"""Tables of measurements, from a recorded machine or from this one."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import pandas as pd

from course.runs import recordings
from electives.microscope.cases import Case, Convolution, Product
from electives.microscope.kernel_names import main_kernel, short_name, tile
from trainspeed import gpus, tensor_cores

MACHINE = "nvidia-h100"
BASE = Product(4096, 4096, 4096)
FORMATS = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
ITEMSIZE = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8, "fp8": 1, "int8": 1}
DATA_SHEET_COLUMN = {"bf16": "fp16", "int8": "fp8"}  # the same rates; others have their own


@dataclass(frozen=True)
class Measurements:
    """Tables of one machine.

    products, near, far, cublas: a row per case with its fields, us, tflop_per_s,
        kernel (the one that multiplies), name (short), tile, and tensor_cores ("used", "not" or
        "unknown").
    counters: a row per kernel of a case, with tensor_active, the share of busy cycles.
    largest: a row per format, with clock and power, and the rate of zeros.
    depthwise: convolutions with one group and with one per channel, on an H200.
    """

    products: pd.DataFrame
    near: pd.DataFrame
    far: pd.DataFrame
    largest: pd.DataFrame
    counters: pd.DataFrame
    cublas: pd.DataFrame
    depthwise: pd.DataFrame


@cache
def load_measurements(machine: str = MACHINE) -> Measurements:
    """Load what research/microscope.py measured on a machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    raw = recordings.part(machine, "microscope")
    source = recordings.origin({"date": raw["date"], "versions": {"torch": raw["torch"]}})
    machine = f"{raw['machine']} ({source})"
    names = [field.name for field in fields(Measurements) if field.name in raw]
    tables = {name: case_table(raw[name]).assign(machine=machine) for name in names}
    tables["largest"] = largest_table(raw["largest"], machine)
    depthwise = case_table(recordings.recorded_table("nvidia-h200", "depthwise"))
    return Measurements(**tables, depthwise=depthwise)


def case_table(rows: list[dict[str, Any]] | dict[str, Any]) -> pd.DataFrame:
    """Return measured cases, with what their kernels' names show."""
    table = pd.DataFrame(rows)
    if "kernel" not in table:
        return table
    kernels = table["kernel"]
    verdicts = [tensor_cores.classify(kernel).verdict if kernel else "" for kernel in kernels]
    names = {"name": kernels.map(short_name), "tile": kernels.map(tile), "tensor_cores": verdicts}
    return table.assign(**names)


def largest_table(rows: list[dict[str, Any]], machine: str) -> pd.DataFrame:
    """Return a row per format, next to the data sheet's rate."""
    table, sheets = pd.DataFrame(rows).set_index("dtype"), gpus.summary()
    sheet = next((gpu for gpu in sheets.index if re.search(rf"\b{gpu}\b", machine)), None)
    columns = [DATA_SHEET_COLUMN.get(name, name) for name in table.index]
    table["published"] = sheets.loc[sheet, columns].to_numpy() if sheet else float("nan")
    share = table["tflop_per_s"] / table["published"]
    return table.assign(share=share, machine=machine)


def widest_load(numbers: int, itemsize: int) -> int:
    """Return the bytes that one load may take from a matrix with rows of this many numbers."""
    return next(width for width in (16, 8, 4, 2, 1) if numbers * itemsize % width == 0)


def counters_by_case(counters: pd.DataFrame) -> pd.DataFrame:
    """Return what ncu counted in each product and convolution.

    Index: case. Columns: dtype, us of the kernel that multiplies, its tensor_active (share of
    cycles), tflop_per_s (without padding) and name; others_us (kernels that pad or convert for it).
    """
    rows = {}
    for case, group in counters.groupby([_case(row) for row in counters.itertuples()], sort=False):
        is_main = group["kernel"].eq(main_kernel(group["kernel"]))
        main = group[is_main].iloc[0]
        speeds = {"tflop_per_s": case.flop / main["us"] / 1e6}
        speeds["others_us"] = group.loc[~is_main, "us"].sum()
        columns = ["dtype", "us", "tensor_active"]
        rows[str(case)] = {**main[columns], **speeds, "name": main["name"]}
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("case")


def _case(row: Any) -> Case:
    if row.what == "product":
        return Product(int(row.m), int(row.n), int(row.k), row.dtype)
    return Convolution(int(row.inputs), int(row.outputs), row.dtype, row.layout)
