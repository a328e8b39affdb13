"""Figures of attention: its tiles and masks, its time and its memory."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    bars,
    describe,
    heading,
    label,
    legend,
    limit,
    lines,
    strip,
)
from electives.attention.measurements import fastest

COLOURS = {
    "written out": ACCENT,
    "SDPA, math": GREY,
    "SDPA, memory-efficient": GREEN,
    "SDPA, FlashAttention": DARK,
    "SDPA, cuDNN": PURPLE,
    "Triton": BLUE,
    "in tiles": BLUE,
    "SDPA": DARK,
    "mask as a tensor": ORANGE,
    "FlexAttention": GREEN,
}
BLOCKS = {0: (f"{GREY}40", "skipped"), 1: (SKY, "masked in part"), 2: (BLUE, "computed")}
STEPS = {"forward": "forward", "training": "forward and backward"}


def plot_blocks(blocks: Any) -> Picture:
    """Draw tiles of queries (rows) and of keys (columns), by what has to be computed.

    Args:
        blocks: a matrix of 0 (skipped), 1 (masked in part) and 2 (computed); or a BlockMask of
            FlexAttention.
    """
    table = blocks if isinstance(blocks, torch.Tensor) else block_table(blocks)
    counts = {words: int((table == kind).sum()) for kind, (_, words) in BLOCKS.items()}
    picture = Picture(0.9 + 0.42 * table.shape[1], 0.8 + 0.3 * len(table))
    axes = picture.panel()
    rows = [[(BLOCKS[int(kind)][0], "") for kind in row] for row in table]
    strip(axes, {f"queries {number}": row for number, row in enumerate(rows)})
    for colour, words in BLOCKS.values():
        axes.plot([], [], "s", color=colour, label=words)
    label(axes, xlabel="tiles of keys")
    describe(axes, "tiles", [f"{count} {words}" for words, count in counts.items()])
    legend(picture)
    return picture


def block_table(block_mask: Any) -> torch.Tensor:
    """Return a block mask as a matrix of blocks: 0 skipped, 1 masked in part, 2 computed."""
    dense = block_mask.to_dense()[0, 0].clone()
    counts, indices = block_mask.full_kv_num_blocks, block_mask.full_kv_indices
    for row, count in enumerate(counts[0, 0].tolist()):
        dense[row, indices[0, 0, row, :count].long()] = 2
    return dense


def plot_times(times: pd.DataFrame) -> Picture:
    """Draw the time of a batch by context and method, from `load_measurements`."""
    picture = Picture(10, 4.2)
    for axes, (step, words) in zip(picture.panels(1, 2, sharey=True), STEPS.items()):
        rows = fastest(times[times["step"] == step].dropna(subset="seconds")).sort_values("tokens")
        names = [name for name in COLOURS if name in {*rows["method"]}]
        curves = {n: rows[rows["method"] == n][["tokens", "seconds"]].T.values for n in names}
        curves = {name: (x, 1e3 * y) for name, (x, y) in curves.items()}
        styles = ["--" if name == "Triton" else "-" for name in names]  # over FlashAttention's line
        lines(axes, curves, colours=[COLOURS[n] for n in names], styles=styles, marker="o")
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:g}")
        contexts = sorted({*rows["tokens"]})
        axes.set_xticks(contexts, [f"{tokens:,.0f}" for tokens in contexts])
        label(axes, words, size=10, xlabel="tokens of a sequence")
    picture.axes[0].set_ylabel("ms for 16,384 tokens")
    heading(picture, times["machine"].iloc[0])
    legend(picture, 3)
    return picture


def plot_masks(masks: pd.DataFrame) -> Picture:
    """Draw time and memory of a training step by mask and method, from `load_measurements`."""
    picture = Picture(10, 3.2)
    left, right = picture.panels(1, 2, sharey=True)
    names = [*masks["mask"].drop_duplicates()]
    for axes, column, factor, words in ((left, "seconds", 1e3, "ms"), (right, "gib", 1, "GiB")):
        table = factor * masks.pivot(index="mask", columns="method", values=column).loc[names]
        series = {name: table[name] for name in COLOURS if name in table}
        bars(axes, names, series, colours=[COLOURS[name] for name in series])
        label(axes, xlabel=words)
    heading(picture, masks["machine"].iloc[0])
    legend(picture)
    return picture


def plot_memory(table: pd.DataFrame, limit_gib: float = 80) -> Picture:
    """Draw the GiB of a training step by context and method, from `predict_by_context`."""
    picture = Picture(8, 4)
    axes = picture.panel()
    curves = {name: (table.index, table[name]) for name in table}
    lines(axes, curves, colours=[COLOURS[name] for name in table], marker="o")
    limit(axes, limit_gib, f"a GPU with {limit_gib:.0f} GiB", colour=GREY, along="y")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.set_xticks(table.index, [f"{tokens:,}" for tokens in table.index])
    label(axes, xlabel="tokens of a sequence", ylabel="GiB, one layer (predicted)")
    legend(picture)
    return picture
