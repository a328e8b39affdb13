"""Figures of number formats, gradients in fp16, and loss scaling."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    FORMAT_COLOURS,
    GREY,
    ORANGE,
    SKY,
    Picture,
    label,
    legend,
    limit,
    lines,
    scatter_fit,
    strip,
)
from labs.mixed_precision.rounding import fp16_shares

BIT_COLOURS = {"sign": ACCENT, "exponent: the range": ORANGE, "mantissa: the precision": SKY}
FP16_ZONES = {  # powers of two, colour, words
    "zero": (-50, -25, ACCENT, "becomes 0"),
    "subnormal": (-25, -14, GREY, "keeps fewer bits"),
    "normal": (-14, 16, "white", "full precision"),
    "overflow": (16, 20, ACCENT, "infinite"),
}


def plot_bits(table: pd.DataFrame) -> Picture:
    """Draw the bits of each format.

    Args:
        table: from `lab.formats`.
    """
    picture = Picture(9, 1.0 + 0.5 * len(table))
    axes = picture.panel()
    cells, words = {}, []
    for name, row in table.iterrows():
        counts = [1, int(row["exponent_bits"]), int(row["mantissa_bits"])]
        cells[name] = [(colour, "") for colour in np.repeat(list(BIT_COLOURS.values()), counts)]
        words.append(" + ".join(map(str, counts)))
    strip(axes, cells, words=words)
    axes.set_xlim(-0.3, 36.5)
    legend(picture, 3, BIT_COLOURS)
    return picture


def plot_range_and_precision(table: pd.DataFrame) -> Picture:
    """Draw the bits of mantissa of each format over the size of a number.

    Args:
        table: from `lab.formats`.
    """
    curves, words = {}, []
    for name, row in table.iterrows():
        sizes = row[["smallest_subnormal", "smallest_normal", "largest"]].to_numpy(dtype=float)
        low, normal, high = np.log2(sizes)
        bits = row["mantissa_bits"]
        curves[name] = [low, low, normal, high, high], [-0.6, 0, bits, bits, -0.6]
        words.append(f"{name}: {bits:.0f} from 2^{normal:.0f} to 2^{high:.0f}")
    picture = Picture(9, 3.4, "Bits of mantissa by the size of the number. " + "; ".join(words))
    axes = picture.panel()
    styles = ["--" if name == "TF32" else "-" for name in curves]
    colours = [FORMAT_COLOURS[name.lower()] for name in curves]
    lines(axes, curves, colours=colours, styles=styles)
    axes.axvline(0, color=GREY, lw=0.8, ls=":")
    powers = (-149, -126, -64, -24, 0, 16, 64, 128)
    axes.set_xticks(powers, [f"2$^{{{power}}}$" for power in powers])
    words = "size of the number (powers of two); slopes on the left: subnormal numbers"
    label(axes, xlabel=words, ylabel="bits of mantissa", ylim=(-0.6, 25.5))
    axes.legend(frameon=False, ncols=4, loc="center", fontsize=9, bbox_to_anchor=(0.5, 0.68))
    return picture


def plot_gradient_histogram(table: pd.DataFrame, scale: float) -> Picture:
    """Draw the sizes of gradients in fp16's range, unscaled and scaled.

    Args:
        table: from `lab.gradient_magnitudes`.
        scale: multiplies the loss, a power of two.
    """
    picture = Picture(9.5, 5)
    rows = picture.panels(2, sharex=True, sharey=True)
    edges = np.arange(-50, 21)
    kinds = table[table["magnitude"] > 0].groupby("kind")["magnitude"]
    for axes, factor in zip(rows, (1.0, scale)):
        for (kind, magnitudes), colour in zip(kinds, (BLUE, ORANGE)):
            powers = np.clip(np.log2(magnitudes * factor), edges[0], edges[-1] - 0.5)
            share = np.full(len(powers), 100 / len(powers))
            axes.hist(powers, edges, weights=share, color=colour, alpha=0.6, label=kind)
        shares = {kind: fp16_shares(magnitudes, factor) for kind, magnitudes in kinds}
        _draw_zones(axes, shares)
    label(rows[0], "gradients without scaling", size=10)
    label(rows[1], f"loss multiplied by 2$^{{{np.log2(scale):g}}}$", size=10)
    rows[0].legend(frameon=False, fontsize=9, loc="center right", title="gradients of")
    rows[1].set_xticks(range(-50, 21, 5), [f"2$^{{{power}}}$" for power in range(-50, 21, 5)])
    rows[1].set_xlabel("|gradient| (the outermost bars include everything beyond)")
    picture.supylabel("share of the gradients that are not zero (%)", fontsize=9)
    return picture


def _draw_zones(axes: Axes, shares: dict[str, dict[str, float]]) -> None:
    """Shade the zones of fp16, and write each kind's share into them."""
    style = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "top", "fontsize": 8}
    for zone, (left, right, colour, words) in FP16_ZONES.items():
        axes.axvspan(left, right, color=colour, alpha=0.16, lw=0, zorder=0)
        if right - left > 5:
            words = "\n".join(
                [words, *(f"{kind}: {by_zone[zone]:.1%}" for kind, by_zone in shares.items())]
            )
        axes.text((left + right) / 2, 0.97, words, **style)
    axes.set_xlim(-50, 20)
    axes.margins(y=0.55)


def plot_loss_scale(table: pd.DataFrame) -> Picture:
    """Draw the loss scale by step, with skipped steps marked.

    Args:
        table: from `lab.loss_scale_history`.
    """
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


def plot_digit_accuracy(table: pd.DataFrame, loss_divisor: int) -> Picture:
    """Draw the share of right answers by step.

    Args:
        table: from `lab.digit_accuracy`.
        loss_divisor: what divided the loss.
    """
    picture = Picture(9, 3)
    axes = picture.panel()
    smooth = 100 * table.rolling(10, min_periods=1).mean()
    curves = {name: (smooth.index, smooth[name]) for name in table}
    styles = ("-", "-", "--")  # the last line covers the first
    lines(axes, curves, colours=(DARK, ACCENT, BLUE), styles=styles)
    limit(axes, 10, colour=GREY)
    axes.text(len(table) * 0.99, 11, "guessing", ha="right", va="bottom", fontsize=9)
    words = {"xlabel": "step", "ylabel": "digits right (%, mean of 10 steps)"}
    label(axes, f"the loss is divided by {loss_divisor:,}", size=10, ylim=(0, 100), **words)
    axes.legend(frameon=False, fontsize=9, loc="center right")
    return picture
