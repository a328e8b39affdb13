"""Figures of kernels: their grids, and their share of a GPU's limits."""

from __future__ import annotations

import pandas as pd

from course.charts import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Picture,
    label,
    legend,
    limit,
    lines,
    strip,
)

COLOURS = {
    "Triton": BLUE,
    "Triton, tuned": SKY,
    "CUDA C++": ORANGE,
    "PyTorch": DARK,
}
PROGRAM_COLOURS = (BLUE, ORANGE, GREEN, SKY)
TILE_COLOURS = {16: f"{BLUE}59", 32: f"{BLUE}80", 64: f"{BLUE}BF"}  # paler for smaller tiles


def plot_grid(size: int, block: int) -> Picture:
    """Draw the numbers of a vector that each program adds; ✗: masked."""
    rows = {}
    for program in range(-(-size // block)):
        offsets = range(program * block, (program + 1) * block)
        colour = PROGRAM_COLOURS[program % len(PROGRAM_COLOURS)]
        cells = [(colour, str(at)) if at < size else (GREY + "40", "✗") for at in offsets]
        rows[f"program {program}: {program}·{block} + 0 … {block - 1}"] = cells
    picture = Picture(8, 0.3 + 0.45 * len(rows))
    strip(picture.panel(), rows)
    return picture


def plot_bandwidth(table: pd.DataFrame) -> Picture:
    """Draw an addition's share of the copy bandwidth by size and by block.

    Args:
        table: from `load_measurements`, as for the figures below.
    """
    sums = table.assign(percent=100 * table["share"]).query("kernel == 'add'")
    sums = sums.sort_values(["size", "block"])
    picture = Picture(10, 3.7)
    left, right = picture.panels(1, 2, sharey=True)
    by_size = sums.query("by != 'Triton' or block == 1024").groupby("by")
    names = [name for name in COLOURS if name in by_size.groups]
    curves = {name: by_size.get_group(name)[["size", "percent"]].T.values for name in names}
    # PyTorch's curve covers Triton's.
    styles = ["--" if name == "PyTorch" else "-" for name in names]
    lines(left, curves, colours=[COLOURS[name] for name in names], styles=styles, marker="o")
    largest = sums["size"].max()
    blocks = sums.query("by == 'Triton' and size == @largest")
    lines(right, {"": (blocks["block"], blocks["percent"])}, colours=BLUE, marker="o")
    for axes in (left, right):
        limit(axes, 100, colour=GREY)
        axes.set_xscale("log", base=2)
    label(left, table["machine"].iloc[0], size=10, xlabel="numbers in a vector", ylim=(0, None))
    left.set_ylabel("% of the copy's bandwidth")
    label(right, f"{largest:,} numbers", size=10, xlabel="numbers per program (BLOCK)")
    legend(picture)
    return picture


def plot_matmul_rate(table: pd.DataFrame) -> Picture:
    """Draw TFLOP/s of a product in bf16 over the matrices' size, by tile."""
    rows = table.query("kernel == 'matmul' and dtype == 'bf16'").sort_values("size")
    curves, colours = {}, []
    for (by, side), group in rows.fillna({"block": 0}).groupby(["by", "block"], sort=False):
        name = f"{by}, tiles of {side:.0f}" if side else by
        curves[name] = (group["size"], group["tflop_per_s"])
        colours.append(TILE_COLOURS.get(side, COLOURS[by]))
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
