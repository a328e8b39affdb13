"""Figures of kernels: who computes what, what is moved, and how near a GPU's ceiling it comes."""

from __future__ import annotations

import pandas as pd

from course.charts.base import ACCENT, BLUE, DARK, GREEN, GREY, ORANGE, PALE, SKY, Picture
from course.charts.primitives import bars, heading, label, legend, limit, lines, stack, strip

COLOURS = {
    "Triton": BLUE,
    "Triton, tuned": SKY,
    "CUDA C++": ORANGE,
    "PyTorch": DARK,
    "PyTorch, step by step": ACCENT,
    "PyTorch, compiled": GREEN,
}
PROGRAM_COLOURS = (BLUE, ORANGE, GREEN, SKY)
TILE_COLOURS = {16: f"{BLUE}59", 32: f"{BLUE}80", 64: f"{BLUE}BF"}  # paler for smaller tiles
NAMES = {"softmax": "softmax, rows of {:,}", "norm_relu": "BatchNorm + ReLU"}


def plot_grid(size: int, block: int) -> Picture:
    """Draw which program adds which numbers of a vector; ✗: a mask keeps it away."""
    rows = {}
    for program in range(-(-size // block)):
        places = range(program * block, (program + 1) * block)
        colour = PROGRAM_COLOURS[program % len(PROGRAM_COLOURS)]
        cells = [(colour, str(at)) if at < size else (PALE, "✗") for at in places]
        rows[f"program {program}: {program}·{block} + 0 … {block - 1}"] = cells
    picture = Picture(8, 0.3 + 0.45 * len(rows))
    strip(picture.panel(), rows)
    return picture


def plot_moved(table: pd.DataFrame) -> Picture:
    """Draw MiB that each way moves, read and written (columns way, read, written: bytes)."""
    picture = Picture(9, 1.1 + 0.45 * len(table))
    axes = picture.panel()
    parts = {name: table[name] / 2**20 for name in ("read", "written")}
    stack(axes, table["way"], parts, colours=(BLUE, ORANGE))
    label(axes, xlabel="MiB through the GPU's memory")
    legend(picture)
    return picture


def plot_adding(table: pd.DataFrame) -> Picture:
    """Draw how near the memory's ceiling an addition comes, over sizes and blocks (`recorded`)."""
    table = table.assign(percent=100 * table["share"])
    added = table[table["kernel"] == "add"].sort_values(["size", "block"])
    picture = Picture(10, 3.7)
    left, right = picture.panels(1, 2, sharey=True)
    usual = added[(added["by"] != "Triton") | (added["block"] == 1024)]
    by = {name: usual[usual["by"] == name] for name in COLOURS if name in {*usual["by"]}}
    curves = {name: (rows["size"], rows["percent"]) for name, rows in by.items()}
    # PyTorch's line is on Triton's.
    styles = ["--" if name == "PyTorch" else "-" for name in by]
    lines(left, curves, colours=[COLOURS[name] for name in by], styles=styles, marker="o")
    largest = added["size"].max()
    blocks = added[(added["by"] == "Triton") & (added["size"] == largest)]
    lines(right, {"": (blocks["block"], blocks["percent"])}, colours=BLUE, marker="o")
    for axes in (left, right):
        limit(axes, 100, colour=GREY)
        axes.set_xscale("log", base=2)
    label(left, table["machine"].iloc[0], size=10, xlabel="numbers in a vector", ylim=(0, None))
    left.set_ylabel("% of the copy's bandwidth")
    label(right, f"{largest:,} numbers", size=10, xlabel="numbers per program (BLOCK)")
    legend(picture)
    return picture


def plot_fused(table: pd.DataFrame) -> Picture:
    """Draw the time of softmax and of BatchNorm + ReLU in each way (`recorded`)."""
    rows = table[table["kernel"].isin(NAMES) & table["flop"].isna()]
    rows = rows[rows["size"].isin([1024, 16384]) | (rows["kernel"] == "norm_relu")]
    groups = rows.groupby(["kernel", "size"], sort=False)
    picture = Picture(10, 3.2)
    for axes, ((kernel, size), group) in zip(picture.panels(1, len(groups)), groups):
        names = [by.replace(", ", ",\n") for by in group["by"]]
        colours = [COLOURS[by] for by in group["by"]]
        bars(axes, names, group["seconds"] * 1e3, colours=colours, room=1.25)
        label(axes, NAMES[kernel].format(size), size=10, xlabel="ms")
    heading(picture, table["machine"].iloc[0])
    return picture


def plot_products(table: pd.DataFrame) -> Picture:
    """Draw TFLOP/s of a product in bf16 over the matrices' size, by the tile (`recorded`)."""
    rows = table[(table["kernel"] == "matmul") & (table["dtype"] == "bf16")].sort_values("size")
    curves, colours = {}, []
    for (by, block), of in rows.fillna({"block": 0}).groupby(["by", "block"], sort=False):
        name = f"{by}, tiles of {block:.0f}" if block else by
        curves[name] = (of["size"], of["tflop_per_s"])
        colours.append(TILE_COLOURS.get(block, COLOURS[by]))
    picture = Picture(9, 3.9)
    axes = picture.panel()
    lines(axes, curves, colours=colours, marker="o")
    axes.set_xscale("log", base=2)
    sizes = rows["size"].unique()
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    title = table["machine"].iloc[0]
    label(axes, title, xlabel="size of two square matrices, bf16", ylabel="TFLOP/s")
    legend(picture)
    return picture
