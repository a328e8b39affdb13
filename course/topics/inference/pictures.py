"""Pictures of latency by batch, of ways to answer, of a scale for each channel, of fewer bits."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    clean,
)
from course.text import digits
from course.topics.inference.int8 import MOST
from course.topics.inference.latency import knee

COLOURS = (BLUE, ACCENT, GREEN, PURPLE)
BATCH_COLOURS = (SKY, BLUE, DARK)


def knees(curves: dict[str, pd.DataFrame], title: str = "") -> Picture:
    """Latency and images a second by batch, a line a way, with each one's knee.

    Args:
        curves: by name, tables of `inference.curve`.
        title: the machine.
    """
    told = "; ".join(_knee(name, table) for name, table in curves.items())
    picture = Picture(10, 3.7, f"latency by batch: {told}")
    left, right = picture.subplots(1, 2)
    for (name, table), colour in zip(curves.items(), COLOURS):
        table = table.sort_values("batch")
        left.plot(table["batch"], 1e3 * table["p50_s"], "o-", color=colour, ms=4, label=name)
        left.fill_between(
            table["batch"],
            1e3 * table["p50_s"],
            1e3 * table["p99_s"],
            color=colour,
            alpha=0.2,
            lw=0,
        )
        right.plot(table["batch"], table["images_per_s"], "o-", color=colour, ms=4, label=name)
        bend = table[table["batch"] == knee(table)]
        for axes, up in ((left, 1e3 * bend["p50_s"]), (right, bend["images_per_s"])):
            axes.plot(bend["batch"], up, "o", color=colour, ms=11, mfc="none", mew=1.8)
    batches = sorted({each for table in curves.values() for each in table["batch"]})
    for axes, name in ((left, "ms a call: line p50, shade to p99"), (right, "images a second")):
        axes.set_title(name, loc="left", fontsize=10)
        axes.set(xscale="log", yscale="log")
        axes.set_xlabel("images at once (ring: the knee)")
        _numbers(axes, batches)
        clean(axes)
    left.legend(frameon=False, fontsize=9)
    if title:
        picture.suptitle(title, x=0.01, ha="left", fontsize=10)
    return picture


def _knee(name: str, table: pd.DataFrame) -> str:
    bend = table[table["batch"] == knee(table)].iloc[0]
    return (
        f"{name}: knee at {bend['batch']:.0f} images, {digits(1e3 * bend['p50_s'])} ms, "
        f"{digits(bend['images_per_s'])} images a second"
    )


def _numbers(axes: Axes, batches: list[int]) -> None:
    """Plain numbers on both axes, which are logarithmic."""
    axes.set_xticks(batches, [str(each) for each in batches])
    low, high = axes.get_ylim()
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)))
    marks = [step * 10.0**power for power in decades for step in (1, 2, 5)]
    shown = [each for each in marks if low <= each <= high]
    axes.set_yticks(shown, [f"{each:,.10g}" for each in shown])
    axes.minorticks_off()


def ladder(table: pd.DataFrame, title: str = "") -> Picture:
    """How many times as fast as fp32 each way is, a bar for each number of images at once."""
    batches = sorted(table["batch"].unique())
    ways = list(dict.fromkeys(table["way"]))
    bars = table.pivot(index="way", columns="batch", values="faster").loc[ways]
    told = "; ".join(
        f"{way}: " + ", ".join(f"{_times(bars.loc[way, each])} with {each}" for each in batches)
        for way in ways
    )
    picture = Picture(
        10, 0.9 + 0.5 * len(ways), f"times as fast as fp32, by images at once: {told}"
    )
    axes = picture.add_subplot()
    height = 0.8 / len(batches)
    for place, (batch, colour) in enumerate(zip(batches, BATCH_COLOURS)):
        at = np.arange(len(ways)) + place * height
        name = "1 image" if batch == 1 else f"{batch} images at once"
        axes.barh(at, bars[batch], height=0.92 * height, color=colour, label=name)
        for up, value in zip(at, bars[batch]):
            if not np.isnan(value):
                axes.text(value, up, f" {_times(value)}", va="center", fontsize=9)
    axes.set_yticks(np.arange(len(ways)) + 0.4 - height / 2, ways)
    axes.invert_yaxis()
    axes.axvline(1, color=GREY, lw=0.8, ls=":")
    axes.set_xlabel("times as fast as fp32")
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    clean(axes)
    return picture


def _times(ratio: float) -> str:
    return f"{ratio:.0f}" if ratio >= 20 else f"{ratio:.1f}"


def channels(weight: torch.Tensor, channel: int | None = None) -> Picture:
    """The largest weight of each output channel, and the steps that the smallest one is left.

    Args:
        weight: of a convolution.
        channel: whose weights are drawn; by default the one whose largest weight is the smallest.
    """
    largest = weight.detach().abs().flatten(1).amax(dim=1).numpy()
    chosen = int(largest.argmin()) if channel is None else channel
    one, whole = float(largest[chosen]), float(largest.max())
    left_over = round(MOST * one / whole)
    picture = Picture(
        10,
        3,
        f"largest weight by channel: from {digits(one)} to {digits(whole)}; with one scale for "
        f"all, channel {chosen} has {left_over} of {MOST} steps",
    )
    left, right = picture.subplots(1, 2, width_ratios=[3, 2])
    colours = [ACCENT if place == chosen else SKY for place in range(len(largest))]
    left.bar(np.arange(len(largest)), largest, color=colours)
    left.axhline(whole, color=DARK, lw=0.8, ls=":")
    left.set_title("largest weight of each output channel", loc="left", fontsize=10)
    left.set_xlabel("channel (dotted: 127 steps, if all share a scale)")
    values = weight.detach()[chosen].flatten().numpy()
    for place, (name, step) in enumerate((("one scale for all", whole), ("its own scale", one))):
        steps = np.round(values / step * MOST)
        right.hist(
            steps,
            bins=np.arange(-MOST, MOST + 8, 6) - 0.5,
            color=(GREY, ACCENT)[place],
            alpha=(1, 0.75)[place],
            label=f"{name}: {len(np.unique(steps))} steps in use",
        )
    right.set_title(f"channel {chosen}: its weights as int8", loc="left", fontsize=10)
    right.set_xlabel("step")
    right.legend(frameon=False, fontsize=9)
    right.set_ylim(top=1.35 * right.get_ylim()[1])  # so that words stand above what is drawn
    for axes in (left, right):
        clean(axes)
    return picture


def bits(table: pd.DataFrame) -> Picture:
    """Accuracy by bits, with one scale a tensor and with one a channel (a table of `by_bits`)."""
    whole = table["fp32"].iloc[0]
    told = "; ".join(
        f"{name}: " + ", ".join(f"{row.bits} bits {row.top1:.3f}" for row in rows.itertuples())
        for name, rows in table.groupby("scales")
    )
    picture = Picture(7.5, 3.3, f"accuracy, fp32 {whole:.3f}; {told}")
    axes = picture.add_subplot()
    for (name, rows), colour in zip(table.groupby("scales"), (ACCENT, ORANGE)):
        rows = rows.sort_values("bits")
        axes.plot(
            rows["bits"], rows["top1"], "o-", color=colour, label=f"a scale for each {name[2:]}"
        )
    axes.axhline(whole, color=DARK, lw=1, ls=":", label="fp32")
    axes.set_xticks(sorted(table["bits"].unique()))
    axes.invert_xaxis()
    axes.set(xlabel="bits", ylabel="accuracy in validation", ylim=(0, None))
    axes.legend(frameon=False, fontsize=9, loc="lower left")
    clean(axes)
    return picture
