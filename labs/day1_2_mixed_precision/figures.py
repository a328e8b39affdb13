"""Pictures of number formats: their bits, their range, gradients inside it, the loss scale."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.charts.base import ACCENT, BLUE, DARK, GREEN, GREY, ORANGE, SKY, Picture
from course.charts.primitives import label, legend, limit, lines, scatter_fit, strip
from labs.day1_2_mixed_precision.rounding import lost_share

FORMAT_COLOURS = {"fp32": DARK, "TF32": GREEN, "fp16": ACCENT, "bf16": BLUE}
BIT_COLOURS = {"sign": ACCENT, "exponent: the range": ORANGE, "mantissa: the precision": SKY}
FP16_VANISHES, FP16_NORMAL, FP16_OVERFLOWS = -25, -14, 16  # powers of two


def plot_bits(table: pd.DataFrame) -> Picture:
    """Draw the bits of each format (a table of `numerics.formats`)."""
    picture = Picture(9, 1.0 + 0.5 * len(table))
    axes = picture.panel()
    cells, words = {}, []
    for name, row in table.iterrows():
        counts = [1, int(row["exponent_bits"]), int(row["mantissa_bits"])]
        colours = np.repeat(list(BIT_COLOURS.values()), counts)
        cells[name] = [(colour, "") for colour in colours]
        words.append(" + ".join(map(str, counts)))
    strip(axes, cells, words=words)
    axes.set_xlim(-0.3, 36.5)
    legend(picture, 3, BIT_COLOURS)
    return picture


def plot_range_and_precision(table: pd.DataFrame) -> Picture:
    """How many bits of mantissa each format has at each size of number (`numerics.formats`)."""
    curves, words = {}, []
    for name, row in table.iterrows():
        sizes = row[["smallest_subnormal", "smallest_normal", "largest"]].to_numpy(dtype=float)
        low, normal, high = np.log2(sizes)
        bits_there = [-0.6, 0, row["mantissa_bits"], row["mantissa_bits"], -0.6]
        curves[name] = [low, low, normal, high, high], bits_there
        words.append(f"{name}: {row['mantissa_bits']:.0f} from 2^{normal:.0f} to 2^{high:.0f}")
    picture = Picture(9, 3.4, "Bits of mantissa by the size of the number. " + "; ".join(words))
    axes = picture.panel()
    styles = ["--" if name == "TF32" else "-" for name in curves]
    lines(axes, curves, colours=[FORMAT_COLOURS[name] for name in curves], styles=styles)
    axes.axvline(0, color=GREY, lw=0.8, ls=":")
    powers = (-149, -126, -64, -24, 0, 16, 64, 128)
    axes.set_xticks(powers, [f"2$^{{{power}}}$" for power in powers])
    label(
        axes,
        xlabel="size of the number (powers of two); slopes on the left: subnormal numbers",
        ylabel="bits of mantissa",
        ylim=(-0.6, 25.5),
    )
    axes.legend(frameon=False, ncols=4, loc="center", fontsize=9, bbox_to_anchor=(0.5, 0.68))
    return picture


def plot_gradient_histogram(table: pd.DataFrame, scale: float) -> Picture:
    """Sizes of gradients against fp16's range, as they are (above) and scaled (below).

    Args:
        table: what `numerics.gradient_magnitudes` returns.
        scale: what the loss is multiplied by, a power of two.
    """
    picture = Picture(9.5, 5)
    rows = picture.panels(2, sharex=True, sharey=True)
    positive = table[table["magnitude"] > 0]
    edges = np.arange(-50, 21)
    for axes, factor in zip(rows, (1.0, scale)):
        for kind, colour in (("activations", BLUE), ("weights", ORANGE)):
            found = positive.loc[positive["of"] == kind, "magnitude"] * factor
            powers = np.clip(np.log2(found), edges[0], edges[-1] - 0.5)
            share = np.full(len(powers), 100 / max(len(powers), 1))
            axes.hist(powers, edges, weights=share, color=colour, alpha=0.6, label=kind)
        _shade_fp16(axes, positive, factor)
    label(rows[0], "gradients as they are", size=10)
    label(rows[1], f"loss multiplied by 2$^{{{np.log2(scale):g}}}$", size=10)
    rows[0].legend(frameon=False, fontsize=9, loc="center right", title="gradients of")
    rows[1].set_xticks(range(-50, 21, 5), [f"2$^{{{power}}}$" for power in range(-50, 21, 5)])
    rows[1].set_xlabel("|gradient| (the outermost bars hold everything beyond)")
    picture.supylabel("share of the gradients that are not zero (%)", fontsize=9)
    return picture


def plot_scale_course(table: pd.DataFrame) -> Picture:
    """The scale step by step, skipped steps marked (a table of `numerics.scaler_course`)."""
    picture = Picture(9, 3)
    axes = picture.panel()
    axes.step(table["step"], table["scale"], where="mid", color=BLUE, lw=1.8, label="scale")
    skipped = table[table["skipped"]]
    words = f"gradient overflowed: step skipped ({len(skipped)} of {len(table)})"
    points = {words: (skipped["step"], skipped["scale"])}
    scatter_fit(axes, points, colours=ACCENT, markers="X", size=10)
    label(axes, xlabel="step", ylabel="scale of the loss")
    axes.set_yscale("log", base=2)
    axes.set_ylim(table["scale"].min() / 1.5, table["scale"].max() * 1.5)
    axes.legend(frameon=False, fontsize=9, loc="upper right")
    return picture


def plot_learned(table: pd.DataFrame, divided_by: int) -> Picture:
    """Draw the share of right answers, step by step (a table of `numerics.learned_digits`)."""
    picture = Picture(9, 3)
    axes = picture.panel()
    smooth = 100 * table.rolling(10, min_periods=1).mean()
    curves = {name: (smooth.index, smooth[name]) for name in table}
    styles = ("-", "-", "--")  # the last line covers the first
    lines(axes, curves, colours=(DARK, ACCENT, BLUE), styles=styles)
    limit(axes, 10, colour=GREY)
    axes.text(len(table) * 0.99, 11, "guessing", ha="right", va="bottom", fontsize=9)
    label(
        axes,
        f"the loss is divided by {divided_by:,}",
        size=10,
        xlabel="step",
        ylabel="digits right (%, mean of 10 steps)",
        ylim=(0, 100),
    )
    axes.legend(frameon=False, fontsize=9, loc="center right")
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
