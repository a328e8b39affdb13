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
    arrow,
    box,
    label,
    legend,
    limit,
    lines,
    scatter_fit,
    strip,
)
from labs.mixed_precision.rounding import BITS, fp16_shares

BIT_COLOURS = {"sign": ACCENT, "exponent: the range": ORANGE, "mantissa: the precision": SKY}
FP16_ZONES = {  # powers of two, colour, words
    "zero": (-50, -25, ACCENT, "becomes 0"),
    "subnormal": (-25, -14, GREY, "keeps fewer bits"),
    "normal": (-14, 16, "white", "full precision"),
    "overflow": (16, 20, ACCENT, "infinite"),
}


def plot_bits() -> Picture:
    """Draw the bits of fp32, TF32, fp16 and bf16."""
    picture = Picture(9, 1.0 + 0.5 * len(BITS))
    axes = picture.panel()
    cells, words = {}, []
    for name, (exponent_bits, mantissa_bits) in BITS.items():
        counts = [1, exponent_bits, mantissa_bits]
        cells[name] = [(colour, "") for colour in np.repeat(list(BIT_COLOURS.values()), counts)]
        words.append(" + ".join(map(str, counts)))
    strip(axes, cells, words=words)
    axes.set_xlim(-0.3, 36.5)
    legend(picture, 3, BIT_COLOURS)
    return picture


def plot_step(scaled: bool = False) -> Picture:
    """Draw a step of mixed precision, with a scaled loss or not: what is stored in which format."""
    alt = (
        "One training step. Forward, from left to right: fp32 weights; a 16-bit copy of them; "
        "16-bit activations; the fp32 loss. Backward, from right to left: 16-bit gradients of the "
        "activations; fp32 gradients of the weights, which update the fp32 weights"
    ) + ". The loss, and so both gradients, are multiplied by S, the update divides by S" * scaled
    picture = Picture(10, 3.2, alt)
    axes = picture.add_subplot()
    axes.set(xlim=(0, 10), ylim=(0, 3.2))
    axes.axis("off")
    wide, half = FORMAT_COLOURS["fp32"], FORMAT_COLOURS["bf16"]
    times = ", × S" * scaled
    for left, low, colour, words in (
        (0.1, 2.1, wide, "weights\nfp32"),
        (2.7, 2.1, half, "copy of weights\n16 bits"),
        (5.3, 2.1, half, "activations\n16 bits"),
        (7.9, 2.1, wide, "loss\nfp32"),
        (5.3, 0.3, half, f"gradients of activations\n16 bits{times}"),
        (1.4, 0.3, wide, f"gradients of weights\nfp32{times}"),
    ):
        box(axes, left, low, 2.0, 0.8, colour, words)
    for begin, end, words, place in (
        ((2.1, 2.5), (2.7, 2.5), "autocast", (2.4, 2.98)),
        ((4.7, 2.5), (5.3, 2.5), "forward", (5.0, 2.98)),
        ((7.3, 2.5), (7.9, 2.5), "loss", (7.6, 2.98)),
        ((8.9, 2.1), (7.3, 0.7), "× S, " * scaled + "backward", (8.9, 1.3)),
        ((5.3, 0.7), (3.4, 0.7), "backward", (4.35, 0.9)),
        ((2.0, 1.1), (1.1, 2.1), "÷ S, " * scaled + "update", (0.75, 1.5)),
    ):
        arrow(axes, begin, end, "->")
        axes.text(*place, words, ha="center", va="center", fontsize=8.5, color=DARK)
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


def plot_digit_accuracy(table: pd.DataFrame, loss_divisor: int) -> Picture:
    """Draw the share of right answers by step, and the scale of the loss.

    Args:
        table: from `lab.digit_accuracy`.
        loss_divisor: what divided the loss.
    """
    picture = Picture(9, 4.4)
    accuracy, scales = picture.panels(2, sharex=True, height_ratios=(2, 1))
    smooth = 100 * table.drop(columns="scale").rolling(10, min_periods=1).mean()
    curves = {name: (smooth.index, smooth[name]) for name in smooth}
    styles = ("-", "-", "--")  # the last line covers the first
    lines(accuracy, curves, colours=(DARK, ACCENT, BLUE), styles=styles)
    limit(accuracy, 10, colour=GREY)
    accuracy.text(len(table) * 0.99, 7, "guessing", ha="right", va="top", fontsize=9)
    words = f"the loss is divided by {loss_divisor:,}"
    label(accuracy, words, size=10, ylabel="digits right (%)", ylim=(0, 100))
    accuracy.legend(frameon=False, fontsize=9, loc="center right")
    scales.step(table.index, table["scale"], where="mid", color=BLUE, lw=1.6)
    skipped = table[table["scale"].diff(-1) > 0]
    words = f"{len(skipped)} of {len(table)} steps overflowed and were skipped"
    points = {words: (skipped.index, skipped["scale"])}
    scatter_fit(scales, points, colours=ACCENT, markers="X", size=7)
    scales.set_yscale("log", base=2)
    label(scales, xlabel="step", ylabel="scale of the loss")
    scales.legend(frameon=False, fontsize=9, loc="upper right")
    return picture
