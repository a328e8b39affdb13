"""Pictures of number formats: their bits, their range, gradients inside it, the loss scale."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.charts.base import ACCENT, BLUE, DARK, GREEN, GREY, ORANGE, SKY, Picture, clean
from course.topics.numerics.rounding import lost_share

FORMAT_COLOURS = {"fp32": DARK, "TF32": GREEN, "fp16": ACCENT, "bf16": BLUE}
FP16_VANISHES, FP16_NORMAL, FP16_OVERFLOWS = -25, -14, 16  # powers of two


def bits(table: pd.DataFrame) -> Picture:
    """The bits of each format, side by side (a table of `numerics.formats`)."""
    picture = Picture(9, 0.9 + 0.5 * len(table), "bits of " + "; ".join(_bits_in_words(table)))
    axes = picture.add_subplot()
    for place, row in enumerate(table.itertuples()):
        parts = ((ACCENT, 1), (ORANGE, row.exponent_bits), (SKY, row.mantissa_bits))
        begin = 0
        for colour, count in parts:
            for bit in range(begin, begin + count):
                box = Rectangle((bit, place - 0.36), 0.92, 0.72, color=colour, lw=0)
                axes.add_patch(box)
            begin += count
        said = " + ".join(str(count) for _, count in parts)
        axes.text(begin + 0.4, place, said, va="center")  # beside the cells, whose borders cut it
    axes.set_yticks(range(len(table)), table.index)
    axes.set_xlim(-0.3, 36.5)
    axes.set_ylim(len(table) - 0.4, -1.1)
    legend = (
        ("sign", ACCENT, 0),
        ("exponent: the range", ORANGE, 2.5),
        ("mantissa: the precision", SKY, 10.5),
    )
    for text, colour, begin in legend:
        axes.add_patch(Rectangle((begin, -0.93), 0.5, 0.34, color=colour, lw=0))
        axes.text(begin + 0.7, -0.76, text, va="center", fontsize=9)
    axes.set_xticks([])
    clean(axes)
    axes.spines[["left", "bottom"]].set_visible(False)
    axes.tick_params(length=0)
    return picture


def _bits_in_words(table: pd.DataFrame) -> Iterator[str]:
    for name, row in table.iterrows():
        yield f"{name}: sign 1, exponent {row['exponent_bits']}, mantissa {row['mantissa_bits']}"


def range_and_precision(table: pd.DataFrame) -> Picture:
    """How many bits of mantissa each format has at each size of number (`numerics.formats`)."""
    picture = Picture(9, 3.4)
    axes = picture.add_subplot()
    for name, row in table.iterrows():
        low, normal, high = np.log2(
            row[["smallest_subnormal", "smallest_normal", "largest"]].to_numpy(dtype=float)
        )
        axes.plot(
            [low, low, normal, high, high],
            [-0.6, 0, row.mantissa_bits, row.mantissa_bits, -0.6],
            color=FORMAT_COLOURS[name],
            lw=2.2,
            label=name,
            ls="--" if name == "TF32" else "-",
        )
    axes.axvline(0, color=GREY, lw=0.8, ls=":")
    axes.set_ylim(-0.6, 25.5)
    powers = (-149, -126, -64, -24, 0, 16, 64, 128)
    axes.set_xticks(powers, [f"2$^{{{power}}}$" for power in powers])
    axes.set_xlabel("size of the number (powers of two); slopes on the left: subnormal numbers")
    axes.set_ylabel("bits of mantissa")
    axes.legend(frameon=False, ncols=4, loc="center", fontsize=9, bbox_to_anchor=(0.5, 0.68))
    clean(axes)
    return picture


def gradient_histogram(table: pd.DataFrame, scale: float) -> Picture:
    """Sizes of gradients against fp16's range, as they are (above) and scaled (below).

    Args:
        table: what `numerics.gradient_magnitudes` returns.
        scale: what the loss is multiplied by, a power of two.
    """
    picture = Picture(9.5, 5)
    rows = picture.subplots(2, 1, sharex=True, sharey=True)
    positive = table[table["magnitude"] > 0]
    edges = np.arange(-50, 21)
    for axes, factor in zip(rows, (1.0, scale)):
        for kind, colour in (("activations", BLUE), ("weights", ORANGE)):
            found = positive.loc[positive["of"] == kind, "magnitude"] * factor
            powers = np.clip(np.log2(found), edges[0], edges[-1] - 0.5)
            share = np.full(len(powers), 100 / max(len(powers), 1))
            axes.hist(powers, edges, weights=share, color=colour, alpha=0.6, label=kind)
        _shade_fp16(axes, positive, factor)
    rows[0].set_title("gradients as they are", loc="left", fontsize=10)
    rows[1].set_title(f"loss multiplied by 2$^{{{np.log2(scale):g}}}$", loc="left", fontsize=10)
    rows[0].legend(frameon=False, fontsize=9, loc="center right", title="gradients of")
    rows[1].set_xticks(range(-50, 21, 5), [f"2$^{{{power}}}$" for power in range(-50, 21, 5)])
    rows[1].set_xlabel("|gradient| (the outermost bars hold everything beyond)")
    picture.supylabel("share of the gradients that are not zero (%)", fontsize=9)
    return picture


def scale_course(table: pd.DataFrame) -> Picture:
    """The scale step by step, skipped steps marked (a table of `numerics.scaler_course`)."""
    picture = Picture(9, 3)
    axes = picture.add_subplot()
    axes.step(table["step"], table["scale"], where="mid", color=BLUE, lw=1.8, label="scale")
    skipped = table[table["skipped"]]
    text = f"gradient overflowed: step skipped ({len(skipped)} of {len(table)})"
    axes.plot(skipped["step"], skipped["scale"], "X", color=ACCENT, ms=8, label=text)
    axes.set_yscale("log", base=2)
    axes.set_ylim(table["scale"].min() / 1.5, table["scale"].max() * 1.5)
    axes.set_xlabel("step")
    axes.set_ylabel("scale of the loss")
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    clean(axes)
    return picture


def learned(table: pd.DataFrame, divided_by: int) -> Picture:
    """How many were right, step by step (a table of `numerics.learned_digits`)."""
    picture = Picture(9, 3)
    axes = picture.add_subplot()
    smooth = 100 * table.rolling(10, min_periods=1).mean()
    lines = zip(table, (DARK, ACCENT, BLUE), ("-", "-", "--"))  # the last lies on the first
    for name, colour, style in lines:
        axes.plot(smooth.index, smooth[name], color=colour, ls=style, lw=2, label=name)
    axes.set_title(f"the loss is divided by {divided_by:,}", loc="left", fontsize=10)
    axes.axhline(10, color=GREY, lw=0.8, ls=":")
    axes.text(len(table) * 0.99, 11, "guessing", ha="right", va="bottom", fontsize=9)
    axes.set_ylim(0, 100)
    axes.set_xlabel("step")
    axes.set_ylabel("digits right (%, mean of 10 steps)")
    axes.legend(frameon=False, fontsize=9, loc="center right")
    clean(axes)
    return picture


def _shade_fp16(axes: Axes, positive: pd.DataFrame, factor: float) -> None:
    lost = {kind: lost_share(part, factor) for kind, part in positive.groupby("of")["magnitude"]}
    zones = (
        ("zero", -50, FP16_VANISHES, ACCENT, "becomes 0"),
        ("subnormal", FP16_VANISHES, FP16_NORMAL, GREY, "keeps fewer bits"),
        ("normal", FP16_NORMAL, FP16_OVERFLOWS, "white", "whole precision"),
        ("overflow", FP16_OVERFLOWS, 20, ACCENT, "infinite"),
    )
    for key, left, right, colour, text in zones:
        axes.axvspan(left, right, color=colour, alpha=0.16, lw=0, zorder=0)
        shares = "\n".join(f"{kind}: {found[key]:.1%}" for kind, found in lost.items())
        said = f"{text}\n{shares}" if right - left > 5 else text
        axes.text(
            (left + right) / 2,
            0.97,
            said,
            transform=axes.get_xaxis_transform(),
            ha="center",
            va="top",
            fontsize=8,
        )
    axes.set_xlim(-50, 20)
    axes.margins(y=0.55)
    clean(axes)
