"""What was seen under the microscope on a machine, as tables."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pandas as pd

from course.analysis.roofline.bounds import Ceilings, recorded_ceilings
from course.analysis.traces.tensor_cores.rules import NOT, classify
from course.runs.recordings import origin, part
from labs.lab_microscope.cases import Convolution, Product
from labs.lab_microscope.libraries import CublasProduct, CudnnConvolution
from labs.lab_microscope.measurements import BASE, FORMATS, SOUGHT
from labs.lab_microscope.names import brief, main_kernel
from labs.lab_microscope.other_sources import BYTES, COLUMN, published
from labs.lab_microscope.solutions import widest_load

KEY, MACHINE = "microscope", "nvidia-h100"
KINDS = {
    "product": Product,
    "convolution": Convolution,
    "cublasproduct": CublasProduct,
    "cudnnconvolution": CudnnConvolution,
}
GRIDS = ("near", "far", "line")
TILE = re.compile(r"(?:nvjet(?:_sm\d+)?_[a-z]+_|tilesize|gemm_\w*?)(\d+)x(\d+)")


@dataclass(frozen=True)
class Seen:
    """Tables of one machine.

    products, convolutions, cublas, cudnn: a row a case; its own columns, us (a median) and iqr_us,
    tflop_per_s, kernel (the one that multiplies), name (what tells of it), tensor_cores ("used",
    "not", "unknown"), generation, kernels (all of them), in_kernels_us (of one call, without what
    is between them), and said, where PyTorch refused it. near, far, line: products by m, n and k.
    counters: a row a kernel of a case, with tensor_active, the share of cycles in which the pipe
    was busy. largest: a row a format, with its clock and power, and the rate of zeros.
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
def recorded(machine: str = MACHINE) -> Seen:
    """What was seen on a machine.

    Raises:
        ValueError: nothing of the kind was recorded there; the message says who has it.
    """
    return seen(part(machine, KEY))


def seen(found: dict[str, Any]) -> Seen:
    """The tables of what research/microscope.py measured."""
    names, when = found["names"], {"date": found["date"], "versions": {"torch": found["torch"]}}
    parts = ("products", "convolutions", "cublas", "cudnn")
    tables = {part: _cases(found.get(part, []), names) for part in parts}
    tables |= {part: grid(found[part], names) for part in GRIDS}
    tables["counters"] = _counters(found.get("counters", []), names)
    tables["largest"] = _largest(found, names)
    label = f"{found['machine']} ({origin(when)})"
    return Seen(label, **{name: each.assign(machine=label) for name, each in tables.items()})


def odd(products: pd.DataFrame, more: int = 1) -> pd.DataFrame:
    """TFLOP/s of a product of three equal sides, and of those with one side longer by `more`.

    Columns: none, M, N, K (the side that is longer; NaN where it was refused), machine. The index
    is the format. All matrices are stored row by row.
    """
    table = products[products["stored"] == BASE.stored].set_index(["dtype", "m", "n", "k"])
    rates = table["tflop_per_s"]
    sides = {"none": {}} | {side.upper(): {side: getattr(BASE, side) + more} for side in "mnk"}
    found = {
        name: [rates[(dtype, *_sides(replace(BASE, **longer)))] for dtype in FORMATS]
        for name, longer in sides.items()
    }
    shown = pd.DataFrame(found, index=pd.Index(FORMATS, name="dtype"))
    return shown.assign(machine=products["machine"].iloc[0])


def _sides(case: Product) -> tuple[int, int, int]:
    return case.m, case.n, case.k


def beside_rule(counters: pd.DataFrame) -> pd.DataFrame:
    """What a counter says of products, beside the widest load that the rule gives their rows.

    Columns: dtype, n, k, load (bytes), tensor_active, tflop_per_s (at the counter's time), name.
    """
    table = counters[counters["what"] == "product"]
    table = table.astype({side: int for side in "mnk"}).reset_index(drop=True)
    load = [
        min(widest_load(row.k, BYTES[row.dtype]), widest_load(row.n, BYTES[row.dtype]))
        for row in table.itertuples()
    ]
    rate = 2e-6 * table["m"] * table["n"] * table["k"] / table["us"]
    found = table[["dtype", "n", "k"]].assign(load=load)
    return found.assign(tensor_active=table["tensor_active"], tflop_per_s=rate, name=table["name"])


def ceilings(machine: str = MACHINE) -> Ceilings:
    """The machine's recorded ceilings, with the largest rates that were found in place of one
    size's.

    Raises:
        ValueError: as `recorded` does.
    """
    usual, found = recorded_ceilings(machine), recorded(machine).largest["tflop_per_s"]
    rates = {name: 1e12 * float(found[name]) for name in usual.flop_per_s}
    source = f"largest products, {recorded(machine).machine.partition('(')[2].rstrip(')')}"
    return replace(usual, flop_per_s=rates, source=source)


def tile(kernel: str) -> tuple[int, int]:
    """Rows and columns of the result that a block computes, as the kernel's name says; or (0, 0).

    cuBLAS names them in its own order, column by column: there rows come second.
    """
    found = TILE.search(kernel)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def _cases(rows: list[dict[str, Any]], names: list[str]) -> pd.DataFrame:
    found = []
    for row in rows:
        kind = KINDS[row["what"]]
        fields = {name: row[name] for name in kind.__dataclass_fields__ if name in row}
        flop = kind(**fields).flop
        us = row.get("us", float("nan"))
        kernels = tuple(names[number] for number in row.get("kernels", ()))
        inside = sum(row["kernels_us"]) if "kernels_us" in row else float("nan")
        how = _how(kernels) | {"kernels": kernels, "in_kernels_us": inside}
        took = {"us": us, "iqr_us": row.get("iqr_us", float("nan")), "tflop_per_s": flop / us / 1e6}
        found.append({**fields, **took, **how, "said": row.get("said", "")})
    return pd.DataFrame(found)


def _how(kernels: tuple[str, ...]) -> dict[str, str]:
    kernel = main_kernel(kernels)
    verdict = classify(kernel)
    used = verdict.verdict if kernel else NOT
    told = {"kernel": kernel, "name": brief(kernel)}
    return told | {"tensor_cores": used, "generation": verdict.generation}


def grid(found: dict[str, Any], names: list[str]) -> pd.DataFrame:
    """Products measured as columns, with their kernels' names and tiles."""
    kept = [name for name in ("m", "n", "k", "us", "iqr_us") if name in found]
    table = pd.DataFrame({name: found[name] for name in kept})
    kernels = [main_kernel(names[number] for number in each) for each in found["kernels"]]
    tiles = [tile(kernel) for kernel in kernels]
    flop = 2.0 * table["m"] * table["n"] * table["k"]
    return table.assign(
        dtype=found["dtype"],
        tflop_per_s=flop / table["us"] / 1e6,
        kernel=kernels,
        name=[brief(kernel) for kernel in kernels],
        tile=[f"{tall} x {wide}" if tall else "" for tall, wide in tiles],
    )


def _counters(rows: list[dict[str, Any]], names: list[str]) -> pd.DataFrame:
    found = []
    for row in rows:
        fields = KINDS[row["what"]].__dataclass_fields__
        case = {"what": row["what"]} | {name: row[name] for name in fields if name in row}
        for number, us, active in zip(row["kernels"], row["us"], row["tensor_active"]):
            verdict = classify(names[number]).verdict
            counted = {"us": us, "tensor_active": active, "by_name": verdict}
            kernel = {"kernel": names[number], "name": brief(names[number])}
            found.append(case | kernel | counted)
    return pd.DataFrame(found)


def _largest(found: dict[str, Any], names: list[str]) -> pd.DataFrame:
    """A row a format, beside what the data sheet says and what the clock allowed."""
    sheets = published(found["machine"])
    rows = {}
    for name in SOUGHT:
        if (one := found.get(f"largest_{name}")) is None:
            continue
        case = Product(one["m"], one["n"], one["k"], name)
        rate = case.flop / one["normal"]["us"] / 1e6
        sheet = sheets.get(COLUMN.get(name, name), float("nan"))
        rows[name] = {
            "m": case.m,
            "n": case.n,
            "k": case.k,
            "tflop_per_s": rate,
            "published": sheet,
            "share": rate / sheet,
            "zeros_tflop_per_s": case.flop / one["zeros"]["us"] / 1e6,
            "mhz": one["normal"].get("mhz"),
            "watts": one["normal"].get("watts"),
            "zeros_mhz": one["zeros"].get("mhz"),
            "zeros_watts": one["zeros"].get("watts"),
            "tried": len(one["tried"]),
            "kernel": main_kernel(names[number] for number in one["kernels"]),
        }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("dtype")
