"""Tables of measurements, from a recorded machine or from this one."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd

from course.analysis import gpus
from course.analysis.roofline import Ceilings, recorded_ceilings
from course.analysis.tensor_cores.rules import NOT, classify
from course.runs.recordings import origin, part
from labs.day1_3_channels_last.convolution import recorded_convolution
from labs.lab_microscope.cases import Convolution, Product
from labs.lab_microscope.kernel_names import main_kernel, short_name, tile
from labs.lab_microscope.solutions import widest_load

MACHINE = "nvidia-h100"
BASE = Product(4096, 4096, 4096)
FORMATS = ("bf16", "fp16", "tf32", "fp32", "fp64", "fp8", "int8")
ITEMSIZE = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4, "fp64": 8, "fp8": 1, "int8": 1}
DATA_SHEET_COLUMN = {"bf16": "fp16", "int8": "fp8"}  # the same rates; others have their own


@dataclass(frozen=True)
class Measurements:
    """Tables of one machine.

    products, convolutions, cublas, cudnn: a row per case with its fields, us (a median) and iqr_us,
        tflop_per_s, kernel (the one that multiplies), name (short), tensor_cores ("used", "not" or
        "unknown"), and said (the error, if PyTorch refused it).
    near, far, line: products by m, n and k.
    counters: a row per kernel of a case, with tensor_active, the share of busy cycles.
    largest: a row per format, with clock and power, and the rate of zeros.
    """

    machine: str
    products: pd.DataFrame
    convolutions: pd.DataFrame
    near: pd.DataFrame
    far: pd.DataFrame
    line: pd.DataFrame
    counters: pd.DataFrame
    cublas: pd.DataFrame
    cudnn: pd.DataFrame
    largest: pd.DataFrame


@cache
def load_measurements(machine: str = MACHINE) -> Measurements:
    """Load what research/microscope.py measured on a machine.

    Raises:
        ValueError: nothing was recorded there.
    """
    return build_tables(part(machine, "microscope"))


def build_tables(raw: dict[str, Any]) -> Measurements:
    """Build the tables from measurements as they are stored, with kernels as numbers of names."""
    names, source = raw["names"], {"date": raw["date"], "versions": {"torch": raw["torch"]}}
    cases = ("products", "convolutions", "cublas", "cudnn")
    tables = {name: _case_table(raw.get(name, []), names) for name in cases}
    tables |= {name: grid_table(raw[name], names) for name in ("near", "far", "line")}
    tables["counters"] = _counter_table(raw.get("counters", []), names)
    tables["largest"] = _largest_table(raw, names)
    machine = f"{raw['machine']} ({origin(source)})"
    tables = {name: table.assign(machine=machine) for name, table in tables.items()}
    return Measurements(machine, **tables)


def _case_table(rows: list[dict[str, Any]], names: Sequence[str]) -> pd.DataFrame:
    if not rows:
        return pd.DataFrame()
    table = pd.DataFrame(rows)
    numbers = [row.get("kernels", []) for row in rows]
    kernels = [main_kernel(names[number] for number in part) for part in numbers]
    return table.assign(
        said=table["said"].fillna("") if "said" in table else "",
        tflop_per_s=[_flop(row) for row in rows] / table["us"] / 1e6,
        kernel=kernels,
        name=[short_name(kernel) for kernel in kernels],
        tensor_cores=[classify(kernel).verdict if kernel else NOT for kernel in kernels],
    )


def _flop(row: dict[str, Any]) -> int:
    if row["what"] == "product":
        return 2 * row["m"] * row["n"] * row["k"]
    if row["what"] == "cublasproduct":
        return 2 * row["side"] ** 3
    if row["what"] == "cudnnconvolution":
        row = row | {"inputs": row["channels"], "outputs": row["channels"]}
    fields = Convolution.__dataclass_fields__
    return Convolution(**{name: row[name] for name in fields if name in row}).flop


def grid_table(columns: dict[str, Any], names: Sequence[str]) -> pd.DataFrame:
    """Build a table of products from columns, with their main kernels and tiles."""
    kernels = [main_kernel(names[number] for number in part) for part in columns["kernels"]]
    table = pd.DataFrame(columns).drop(columns="kernels")
    return table.assign(
        tflop_per_s=2.0 * table["m"] * table["n"] * table["k"] / table["us"] / 1e6,
        kernel=kernels,
        name=[short_name(kernel) for kernel in kernels],
        tile=[tile(kernel) for kernel in kernels],
    )


def _counter_table(rows: list[dict[str, Any]], names: Sequence[str]) -> pd.DataFrame:
    table = pd.DataFrame(rows)
    if table.empty:
        return table
    table = table.explode(["kernels", "us", "tensor_active"], ignore_index=True)
    table[["us", "tensor_active"]] = table[["us", "tensor_active"]].astype(float)
    kernels = [names[number] for number in table["kernels"]]
    shortened = [short_name(kernel) for kernel in kernels]
    return table.drop(columns="kernels").assign(kernel=kernels, name=shortened)


def _largest_table(raw: dict[str, Any], names: Sequence[str]) -> pd.DataFrame:
    """Build a row per format, next to the data sheet's rate."""
    sheets = gpus.summary()
    sheet = next((gpu for gpu in sheets.index if re.search(rf"\b{gpu}\b", raw["machine"])), None)
    rows = {}
    for key in [key for key in raw if key.startswith("largest_")]:
        format_, best = key.removeprefix("largest_"), raw[key]
        normal, zeros = best["normal"], best["zeros"]
        mflop = 2 * best["m"] * best["n"] * best["k"] / 1e6
        column = DATA_SHEET_COLUMN.get(format_, format_)
        published = sheets.loc[sheet, column] if sheet else float("nan")
        rows[format_] = {side: best[side] for side in "mnk"} | {
            "tflop_per_s": mflop / normal["us"],
            "published": published,
            "share": mflop / normal["us"] / published,
            "zeros_tflop_per_s": mflop / zeros["us"],
            "mhz": normal.get("mhz"),
            "watts": normal.get("watts"),
            "zeros_mhz": zeros.get("mhz"),
            "zeros_watts": zeros.get("watts"),
            "tried": len(best["tried"]),
            "kernel": main_kernel(names[number] for number in best["kernels"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("dtype")


def odd_side_rates(products: pd.DataFrame) -> pd.DataFrame:
    """Return TFLOP/s of a product with equal sides, and with one side longer by 1.

    Index: format. Columns: none, M, N, K (the longer side; NaN: refused), machine. All matrices
    are stored row by row.
    """
    by_rows = products[products["stored"] == BASE.stored]
    rates = by_rows.set_index(["m", "n", "k", "dtype"]).sort_index()
    changes = {"none": {}} | {side.upper(): {side: getattr(BASE, side) + 1} for side in "mnk"}
    columns = {}
    for name, change in changes.items():
        case = replace(BASE, **change)
        columns[name] = rates["tflop_per_s"].loc[case.m, case.n, case.k]
    return pd.DataFrame(columns).loc[[*FORMATS]].assign(machine=products["machine"].iloc[0])


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
    ceilings, measurements = recorded_ceilings(MACHINE), load_measurements()
    largest = measurements.largest["tflop_per_s"]
    rates = {name: 1e12 * float(largest[name]) for name in ceilings.flop_per_s}
    source = f"largest products, {measurements.machine.partition('(')[2].rstrip(')')}"
    return replace(ceilings, flop_per_s=rates, source=source)


def channel_sweep(precision: str) -> pd.DataFrame:
    """Return the H100's recorded convolution over channels in NHWC, with the widest load.

    Columns: channels, load (bytes, of the channels of a pixel), ms, tflop_per_s, precision, layout,
    machine.
    """
    table = recorded_convolution(MACHINE, precision).query("layout == 'NHWC'")
    loads = [widest_load(count, ITEMSIZE[precision]) for count in table["channels"]]
    return table.reset_index(drop=True).assign(load=loads)
