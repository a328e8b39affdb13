"""What was recorded of products and convolutions on an H100, beside what rules say of them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pandas as pd

from course.runs.recordings import load, origin
from course.topics import gpus
from course.topics.kernels.measured import recorded as recorded_kernels
from course.topics.layout.convolution import recorded_convolution
from course.topics.microscope.given import waves, widest_load
from course.topics.roofline.bounds import Ceilings, recorded_ceilings

MACHINE = "nvidia-h100"
BYTES = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
# TFLOP/s as data sheets print them, by format; int8 in the same column as fp8 on Hopper.
COLUMN = {"bf16": "fp16", "int8": "fp8"}
TILE = (128, 256)


def channels(precision: str, layout: str = "NHWC", machine: str = MACHINE) -> pd.DataFrame:
    """A recorded convolution over its channels, with the widest load that they allow.

    Columns: channels, load (bytes; of a pixel's channels, which lie side by side in NHWC), ms,
    tflop_per_s, precision, layout, machine.
    """
    table = recorded_convolution(machine, precision)
    table = table[table["layout"] == layout].reset_index(drop=True)
    loads = [widest_load(count, BYTES[precision]) for count in table["channels"]]
    kept = ["ms", "tflop_per_s", "precision", "layout", "machine"]
    return table[["channels"]].assign(load=loads).join(table[kept])


def sizes(
    dtype: str = "bf16", tile: tuple[int, int] = TILE, units: int = 132, machine: str = MACHINE
) -> pd.DataFrame:
    """Recorded products of square matrices by cuBLAS, beside how many turns tiles would fill.

    Columns: size, tiles, waves, filled (share of the multiprocessors' turns that have a tile),
    tflop_per_s, reached (its share of the fastest size's), machine.
    """
    table = recorded_kernels(machine)
    table = table[(table["kernel"] == "matmul") & (table["by"] == "PyTorch")]
    table = table[table["dtype"] == dtype].sort_values("size").reset_index(drop=True)
    tiles = [-(-size // tile[0]) * -(-size // tile[1]) for size in table["size"]]
    turns = [waves(size, size, tile, units) for size in table["size"]]
    filled = [count / (turn * units) for count, turn in zip(tiles, turns)]
    found = table[["size"]].assign(tiles=tiles, waves=turns, filled=filled)
    rate = table["tflop_per_s"]
    return found.assign(tflop_per_s=rate, reached=rate / rate.max(), machine=table["machine"])


def largest(machine: str = MACHINE) -> pd.DataFrame:
    """The fastest recorded product in each format, beside the data sheet. The index is the format.

    Columns: size (rows of two square matrices), tried (how many were timed), tflop_per_s,
    published, share, machine.
    """
    saved = load(machine)
    table = recorded_kernels(machine)
    table = table[(table["kernel"] == "matmul") & (table["by"] == "PyTorch")]
    sheet, rows = published(saved["machine"]), {}
    for name in BYTES:
        tried = table.loc[table["dtype"] == name, ["size", "tflop_per_s"]].to_numpy().tolist()
        tried.append((8192, saved["ceilings"][name]["tflop_per_s"]))  # "a @ a, 8192 x 8192"
        size, rate = max(tried, key=lambda each: each[1])
        limit = sheet.get(COLUMN.get(name, name), float("nan"))
        row = {"size": int(size), "tried": len(tried), "tflop_per_s": rate}
        rows[name] = row | {"published": limit, "share": rate / limit}
    label = f"{saved['machine'].partition(',')[0]} ({_when(saved)})"
    found = pd.DataFrame.from_dict(rows, orient="index").rename_axis("dtype")
    return found.astype({"size": int, "tried": int}).assign(machine=label)


def ceilings(machine: str = MACHINE) -> Ceilings:
    """The machine's recorded ceilings, with the fastest recorded product in place of one size's."""
    rates = (1e12 * largest(machine)["tflop_per_s"]).to_dict()
    source = f"fastest product, {_when(load(machine))}"
    return replace(recorded_ceilings(machine), flop_per_s=rates, source=source)


def _when(saved: dict[str, Any]) -> str:
    """When both were recorded, the ceilings and the products of lab kernel."""
    dates = " and ".join(sorted({saved["date"], saved["kernels"]["date"]}))
    return origin(saved | {"date": dates})


def published(machine: str) -> dict[str, float]:
    """The data sheet's row of the GPU that a machine's name has in it; nothing where none is."""
    table = gpus.summary()
    for name in table.index:
        if re.search(rf"\b{name}\b", machine):
            return table.loc[name].to_dict()
    return {}
