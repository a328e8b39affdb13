"""Pictures of kernels: who computes what, what is moved, and how near a GPU's ceiling it comes."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Picture,
    clean,
    words_on,
)
from course.text import digits

COLOURS = {
    "Triton": BLUE,
    "Triton, tuned": SKY,
    "CUDA C++": ORANGE,
    "PyTorch": DARK,
    "PyTorch, step by step": ACCENT,
    "PyTorch, compiled": GREEN,
}
PROGRAM_COLOURS = (BLUE, ORANGE, GREEN, SKY)
NAMES = {"softmax": "softmax, rows of {:,}", "norm_relu": "BatchNorm + ReLU"}


def grid(size: int, block: int) -> Picture:
    """Which program adds which numbers of a vector, and what a mask keeps away."""
    programs = -(-size // block)
    beyond = programs * block - size
    alt = f"{size} numbers in {programs} programs of {block}; {beyond} places are masked"
    picture = Picture(10, 1.9, alt)
    axes = picture.add_subplot()
    for at in range(programs * block):
        program = at // block
        there = at < size
        hue = PROGRAM_COLOURS[program % len(PROGRAM_COLOURS)] if there else GREY
        x = at + 0.6 * program
        axes.add_patch(Rectangle((x, 0), 0.9, 0.9, color=hue, lw=0, alpha=1 if there else 0.3))
        said = str(at) if there else "✗"
        axes.text(
            x + 0.45,
            0.45,
            said,
            ha="center",
            va="center",
            fontsize=8,
            color=words_on(hue) if there else DARK,
        )
    for program in range(programs):
        begin = program * (block + 0.6)
        axes.text(begin, 1.3, f"program {program}", fontsize=9, color=DARK)
        ends = f"{program}·{block} + 0 … {block - 1}"
        axes.text(begin, -0.7, ends, fontsize=9, color=DARK)
    axes.set(xlim=(-0.3, programs * (block + 0.6)), ylim=(-1.1, 1.9))
    axes.axis("off")
    return picture


def moved(table: pd.DataFrame) -> Picture:
    """MiB that each way moves, read and written (columns way, read, written: bytes)."""
    told = ", ".join(
        f"{row.way} {(row.read + row.written) / 2**20:.1f}" for row in table.itertuples()
    )
    picture = Picture(9, 0.9 + 0.45 * len(table), f"MiB moved: {told}")
    axes = picture.add_subplot()
    places = np.arange(len(table))
    read, written = table["read"] / 2**20, table["written"] / 2**20
    axes.barh(places, read, color=BLUE, height=0.6, label="read")
    axes.barh(places, written, left=read, color=ORANGE, height=0.6, label="written")
    for place, total in zip(places, read + written):
        axes.text(total, place, f" {digits(total)}", va="center", fontsize=9, color=DARK)
    axes.set_yticks(places, table["way"])
    axes.invert_yaxis()
    axes.set_xlabel("MiB through the GPU's memory")
    axes.set_xlim(0, 1.12 * (read + written).max())
    axes.legend(frameon=False, fontsize=9, loc="lower right")
    clean(axes)
    return picture


def adding(table: pd.DataFrame) -> Picture:
    """How near the memory's ceiling an addition comes, over sizes and over blocks (`recorded`)."""
    added = table[table["kernel"] == "add"]
    picture = Picture(10, 3.5, _nearest(added))
    left, right = picture.subplots(1, 2, sharey=True)
    largest = added["size"].max()
    usual = added[(added["by"] != "Triton") | (added["block"] == 1024)]
    for by, rows in usual.groupby("by", sort=False):
        rows = rows.sort_values("size")
        style = "o--" if by == "PyTorch" else "o-"  # it lies on Triton's
        left.plot(rows["size"], 100 * rows["share"], style, color=COLOURS[by], ms=4, label=by)
    blocks = added[(added["by"] == "Triton") & (added["size"] == largest)].sort_values("block")
    right.plot(blocks["block"], 100 * blocks["share"], "o-", color=BLUE, ms=4)
    for axes, words in ((left, "numbers in a vector"), (right, "numbers a program (BLOCK)")):
        axes.axhline(100, color=GREY, lw=0.8, ls=":")
        axes.set_xscale("log", base=2)
        axes.set_xlabel(words)
        axes.set_ylim(bottom=0)
        clean(axes)
    left.set_ylabel("% of the copy's bandwidth")
    left.set_title(table["machine"].iloc[0], loc="left", fontsize=10)
    right.set_title(f"{largest:,} numbers", loc="left", fontsize=10)
    left.legend(frameon=False, fontsize=9)
    return picture


def _nearest(added: pd.DataFrame) -> str:
    best = added.loc[added["share"].idxmax()]
    return (
        f"addition of vectors on {added['machine'].iloc[0]}: at most {best['share']:.0%} of the "
        f"bandwidth of a copy, by {best['by']} with {best['size']:,} numbers"
    )


def fused(table: pd.DataFrame) -> Picture:
    """Softmax and BatchNorm + ReLU: bandwidth of what must be moved (`recorded`)."""
    rows = table[table["kernel"].isin(NAMES) & table["flop"].isna()]
    kinds = rows[rows["size"].isin([1024, 16384]) | (rows["kernel"] == "norm_relu")]
    groups = [*kinds.groupby(["kernel", "size"], sort=False)]
    picture = Picture(10, 3.2, "; ".join(_times(group) for _, group in groups))
    panels = picture.subplots(1, len(groups))
    for axes, ((kernel, size), group) in zip(np.atleast_1d(panels), groups):
        _bars(axes, group, group["seconds"] * 1e3)
        axes.set_title(NAMES[kernel].format(size), loc="left", fontsize=10)
        axes.set_xlabel("ms")
    picture.suptitle(table["machine"].iloc[0], fontsize=9, x=0.01, ha="left")
    return picture


def _times(group: pd.DataFrame) -> str:
    told = ", ".join(f"{row.by} {digits(row.seconds * 1e3)} ms" for row in group.itertuples())
    return f"{group['kernel'].iloc[0]}: {told}"


def _bars(axes: Axes, group: pd.DataFrame, values: pd.Series) -> None:
    places = np.arange(len(group))
    axes.barh(places, values, color=[COLOURS[by] for by in group["by"]], height=0.65)
    for place, value in zip(places, values):
        axes.text(value, place, f" {digits(value)}", va="center", fontsize=9, color=DARK)
    axes.set_yticks(places, [by.replace(", ", ",\n") for by in group["by"]])
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * values.max())
    clean(axes)


def products(table: pd.DataFrame, dtype: str = "bf16") -> Picture:
    """TFLOP/s of a product over the matrices' size, by the tile (`recorded`)."""
    rows = table[(table["kernel"] == "matmul") & (table["dtype"] == dtype)]
    largest = rows[rows["size"] == rows["size"].max()]
    told = ", ".join(f"{_way(row)} {digits(row.tflop_per_s)}" for row in largest.itertuples())
    picture = Picture(9, 3.6, f"TFLOP/s at size {largest['size'].iloc[0]:,}: {told}")
    axes = picture.add_subplot()
    shades = {16: 0.35, 32: 0.5, 64: 0.75, 128: 1.0}
    ways = rows.assign(way=[_way(row) for row in rows.itertuples()])
    for way, each in ways.groupby("way", sort=False):
        each = each.sort_values("size")
        block = each["block"].iloc[0]
        shade = shades.get(block, 1.0) if pd.notna(block) else 1.0
        hue = COLOURS[each["by"].iloc[0]]
        axes.plot(each["size"], each["tflop_per_s"], "o-", color=hue, alpha=shade, ms=4, label=way)
    axes.set_xscale("log", base=2)
    sizes = sorted(rows["size"].unique())
    axes.set_xticks(sizes, [f"{size:,}" for size in sizes])
    axes.set_xlabel(f"size of two square matrices, {dtype}")
    axes.set_ylabel("TFLOP/s")
    axes.set_title(table["machine"].iloc[0], loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=9)
    clean(axes)
    return picture


def _way(row: object) -> str:
    return row.by if pd.isna(row.block) else f"{row.by}, tiles of {row.block:.0f}"
