"""Tables of measurements, from a recorded machine or from this one."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cache
from typing import Any

import pandas as pd

from course.analysis import gpus
from course.analysis.roofline import Ceilings, recorded_ceilings
from course.analysis.tensor_cores.rules import classify
from course.runs.recordings import origin, part
from labs.day1_4_channels_last.convolution import recorded_convolution
from labs.lab_microscope.cases import Product
from labs.lab_microscope.kernel_names import short_name, tile
from labs.lab_microscope.solutions import widest_load

MACHINE = "nvidia-h100"
BASE = Product(4096, 4096, 4096)
FORMATS = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
ITEMSIZE = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8, "fp8": 1, "int8": 1}
DATA_SHEET_COLUMN = {"bf16": "fp16", "int8": "fp8"}  # the same rates; others have their own


@dataclass(frozen=True)
class Measurements:
    """Tables of one machine.

    products, near, far, line, cublas, cudnn: a row per case with its fields, us, tflop_per_s,
        kernel (the one that multiplies), name (short), tile, and tensor_cores ("used", "not" or
        "unknown").
    counters: a row per kernel of a case, with tensor_active, the share of busy cycles.
    largest: a row per format, with clock and power, and the rate of zeros.
    """

    products: pd.DataFrame
    near: pd.DataFrame
    far: pd.DataFrame
    line: pd.DataFrame
    largest: pd.DataFrame
    counters: pd.DataFrame
    cublas: pd.DataFrame
    cudnn: pd.DataFrame


@cache
def load_measurements(machine: str = MACHINE) -> Measurements:
    """Load what research/microscope.py measured on a machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    raw = part(machine, "microscope")
    source = origin({"date": raw["date"], "versions": {"torch": raw["torch"]}})
    return build_tables(raw, f"{raw['machine']} ({source})")


def build_tables(raw: dict[str, Any], machine: str) -> Measurements:
    """Build the tables from rows or columns of measurements; missing ones are empty."""
    names = [field.name for field in fields(Measurements)]
    tables = {name: case_table(raw.get(name, [])) for name in names}
    tables["largest"] = _largest_table(raw["largest"], machine)
    return Measurements(**{name: table.assign(machine=machine) for name, table in tables.items()})


def case_table(rows: list[dict[str, Any]] | dict[str, Any]) -> pd.DataFrame:
    """Return measured cases, with what their kernels' names show."""
    table = pd.DataFrame(rows)
    if "kernel" not in table:
        return table
    kernels = table["kernel"]
    verdicts = [classify(kernel).verdict if kernel else "" for kernel in kernels]
    names = {"name": kernels.map(short_name), "tile": kernels.map(tile), "tensor_cores": verdicts}
    return table.assign(**names)


def _largest_table(rows: list[dict[str, Any]], machine: str) -> pd.DataFrame:
    """Return a row per format, next to the data sheet's rate."""
    table, sheets = pd.DataFrame(rows).set_index("dtype"), gpus.summary()
    sheet = next((gpu for gpu in sheets.index if re.search(rf"\b{gpu}\b", machine)), None)
    columns = [DATA_SHEET_COLUMN.get(name, name) for name in table.index]
    table["published"] = sheets.loc[sheet, columns].to_numpy() if sheet else float("nan")
    return table.assign(share=table["tflop_per_s"] / table["published"])


def odd_side_rates(products: pd.DataFrame) -> pd.DataFrame:
    """Return TFLOP/s of a product with equal sides, and with one side longer by 1.

    Index: format. Columns: none, M, N, K (the longer side; NaN: refused), machine.
    """
    rates = products.set_index(["m", "n", "k", "dtype"]).sort_index()
    changes = {"none": {}} | {side.upper(): {side: getattr(BASE, side) + 1} for side in "mnk"}
    columns = {}
    for name, change in changes.items():
        case = replace(BASE, **change)
        columns[name] = rates["tflop_per_s"].loc[case.m, case.n, case.k]
    return pd.DataFrame(columns).reindex(FORMATS).assign(machine=products["machine"].iloc[0])


def counters_by_load(counters: pd.DataFrame) -> pd.DataFrame:
    """Return a counter's values for products, with the widest load that their rows allow.

    Columns: dtype, n, k, load (bytes), tensor_active, tflop_per_s (during the count), name.
    """
    table = counters[counters["what"] == "product"].reset_index(drop=True)
    table = table.astype({side: int for side in "mnk"})
    loads = [
        min(widest_load(length, ITEMSIZE[row.dtype]) for length in (row.k, row.n))
        for row in table.itertuples()
    ]
    rate = 2e-6 * table["m"] * table["n"] * table["k"] / table["us"]
    table = table.assign(load=loads, tflop_per_s=rate)
    return table[["dtype", "n", "k", "load", "tensor_active", "tflop_per_s", "name"]]


def measured_ceilings() -> Ceilings:
    """Return the H100's recorded ceilings, with the largest measured rates of products."""
    ceilings, largest = recorded_ceilings(MACHINE), load_measurements().largest
    rates = {name: 1e12 * largest.loc[name, "tflop_per_s"] for name in ceilings.flop_per_s}
    source = f"largest products, {largest['machine'].iloc[0].partition('(')[2].rstrip(')')}"
    return replace(ceilings, flop_per_s=rates, source=source)


def channel_sweep(precision: str) -> pd.DataFrame:
    """Return the H100's recorded convolution over channels in NHWC, with the widest load.

    Columns: channels, load (bytes, of the channels of a pixel), ms, tflop_per_s, precision, layout,
    machine.
    """
    table = recorded_convolution(MACHINE, precision).query("layout == 'NHWC'")
    loads = [widest_load(count, ITEMSIZE[precision]) for count in table["channels"]]
    return table.reset_index(drop=True).assign(load=loads)
