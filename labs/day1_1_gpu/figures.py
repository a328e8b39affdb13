"""Pictures of memory: a sweep over batch sizes, and what holds the memory of a step."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    FORMAT_COLOURS,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
)
from course.charts.primitives import heading, label, legend, limit, lines, scatter_fit, stack
from course.text import digits
from labs.day1_1_gpu.batch_sweep import Fit

KIND_COLOURS = {
    "weights": BLUE,
    "gradients": ORANGE,
    "optimizer state": GREEN,
    "weight copies": PURPLE,
    "batch": GREY,
    "activations": SKY,
}


def plot_batch_sweep(
    table: pd.DataFrame,
    fit: Fit | None = None,
    predicted: pd.Series | None = None,
    limit_gib: float = 0.0,
) -> Picture:
    """Peak memory (left) and throughput (right) against the batch size.

    A run that ran out of memory is a cross at its batch size, where the line would have it.

    Args:
        table: what `batch_sizes.sweep` returns.
        fit: what `batch_sizes.fit` returns; drawn as the part that grows on the part that does not.
        predicted: peak GiB without running, indexed by batch size.
        limit_gib: the memory of the device, a dashed line; limits that runs had (`memory_gib`)
            are drawn in any case.
    """
    picture = Picture(10, 3.8)
    left, right = picture.panels(1, 2)
    _peaks(left, table, fit, predicted)
    for gib in sorted({limit_gib, *table["memory_gib"]} - {0}):
        enough = f", enough for batch {fit.largest_batch(gib)}" if fit else ""
        limit(left, gib, f"limit: {gib:g} GiB{enough}")
    if left.get_legend_handles_labels()[0]:
        left.legend(frameon=False, fontsize=8, loc="upper left")
    left.set_ylim(0, left.get_ylim()[1] * (1.35 if fit else 1.2))  # room for the legend
    _speeds(right, table)
    known = table[table["machine"].fillna("") != ""]
    titles = known["machine"] + "; " + known["model"] + ", " + known["inputs"]
    heading(picture, "\n".join(dict.fromkeys(titles)))
    return picture


def _peaks(axes: Axes, table: pd.DataFrame, fit: Fit | None, predicted: pd.Series | None) -> None:
    ok, missing = table[table["status"] == "ok"], table[table["status"] != "ok"]
    edge = table["batch_size"].max() * 1.06
    fits = {}
    if fit is not None:
        ends = np.array([0, edge])
        line = fit.fixed_gib + fit.per_image_gib * ends
        grows = f"grows: {fit.per_image_gib * 1024:.1f} MiB an image"
        fixed = f"does not grow: {fit.fixed_gib:.2f} GiB"
        axes.fill_between(ends, fit.fixed_gib, line, color=SKY, alpha=0.45, lw=0, label=grows)
        axes.fill_between(ends, 0, fit.fixed_gib, color=GREY, alpha=0.6, lw=0, label=fixed)
        near = f"line: within {max(fit.misfit, 0.001):.1%} of {fit.sizes} sizes"
        fits["line through two sizes: no test" if fit.sizes == 2 else near] = (ends, line)
    points = {"measured": (ok["batch_size"], ok["peak_gib"])} if len(ok) else {}
    scatter_fit(axes, points, fits, colours=BLUE)
    if predicted is not None:
        points = {"predicted": (predicted.index, predicted)}
        scatter_fit(axes, points, colours=ACCENT, markers="D", hollow=True, size=9)
    heights = missing["peak_gib"].fillna(ok["peak_gib"].max() if len(ok) else 1)
    _crosses(axes, missing, heights if fit is None else fit.at(missing["batch_size"]))
    kinds = " or ".join(dict.fromkeys(kind for kind in table["memory_kind"].dropna() if kind))
    title = f"peak memory ({kinds})" if kinds else "peak memory"
    label(axes, title, size=10, xlabel="images in a batch", ylabel="GiB", xlim=(0, edge))
    axes.set_ylim(bottom=0)


def _speeds(axes: Axes, table: pd.DataFrame) -> None:
    ok, missing = table[table["status"] == "ok"], table[table["status"] != "ok"]
    speeds = {"": (ok["batch_size"], ok["images_per_s"])}
    spread = {"": (ok["images_per_s_q1"], ok["images_per_s_q3"])}
    lines(axes, speeds, errors=spread, marker="o", colours=BLUE)
    _crosses(axes, missing, pd.Series(0.0, index=missing.index))
    _batches(axes, table, "images in a batch")
    label(axes, "images per second: median, quartiles", size=10)
    axes.set_ylim(bottom=0)


def _crosses(axes: Axes, missing: pd.DataFrame, heights: pd.Series) -> None:
    words = {"oom": "out of memory"}
    axes.plot(missing["batch_size"], heights, "X", color=ACCENT, ms=11, clip_on=False, zorder=5)
    for batch, status, height in zip(missing["batch_size"], missing["status"], heights):
        axes.annotate(
            f"{words.get(status, status)} at {batch}",
            (batch, height),
            (-9, 9),
            textcoords="offset points",
            ha="right",
            fontsize=8,
            color=ACCENT,
        )


def plot_anatomy(table: pd.DataFrame) -> Picture:
    """Where a step's memory is: by part of the network (left) and by kind, in all (right).

    Args:
        table: what `held.anatomy` returns.
    """
    wide = table.pivot_table("gib", "part", "kind", "sum", sort=False)[list(KIND_COLOURS)]
    growing, fixed = wide[["batch", "activations"]], wide.drop(columns=["batch", "activations"])
    sums = pd.DataFrame({"grows": growing.sum(), "does not": fixed.sum()}).T
    picture = Picture(10, 3.9)
    left, middle, right = picture.panels(1, 3, width_ratios=(3, 3, 2))
    _stack(left, growing, "grows with the batch")
    _stack(middle, fixed, "does not grow")
    middle.tick_params(labelleft=False)
    _stack(right, sums[list(KIND_COLOURS)].fillna(0), "in all")
    drawn = {kind: colour for kind, colour in KIND_COLOURS.items() if wide[kind].sum() > 0}
    legend(picture, 6, drawn)
    return picture


def _stack(axes: Axes, wide: pd.DataFrame, title: str) -> None:
    """Draw bars of GiB, or of MiB where the largest is below one GiB."""
    scale, unit = (1, "GiB") if wide.sum(axis=1).max() >= 1 else (1024, "MiB")
    sums = wide.sum(axis=1) * scale
    words = [digits(each) if each >= 0.01 else "< 0.01" for each in sums]
    stack(axes, list(wide.index), (wide * scale).to_dict("list"), words=words, colours=KIND_COLOURS)
    label(axes, f"{title} ({unit})", size=10)


def plot_predicted_peaks(table: pd.DataFrame) -> Picture:
    """Predicted and measured peaks over the batch size (left), and how far apart they are (right).

    A colour is a number format, a marker what else was on. A run that ran out of memory has no
    measured peak: it is a cross where the prediction has it, above the dashed line.

    Args:
        table: what `peaks.predicted` or `peaks.of_recorded` returns.
    """
    picture = Picture(10, 4.8)
    left, right = picture.panels(1, 2)
    groups = list(table.groupby("setting", sort=False))
    for place, (setting, rows) in enumerate(groups):
        colour, marker = _look(rows.iloc[0])
        ok, oom = rows[rows["status"] == "ok"], rows[rows["status"] == "oom"]
        left.plot(rows["batch_size"], rows["predicted_gib"], color=colour, lw=1)
        left.plot(ok["batch_size"], ok["measured_gib"], marker, color=colour, ms=7, mec="white")
        left.plot(oom["batch_size"], oom["predicted_gib"], "X", color=colour, ms=10, mec="white")
        aside = 2 ** (0.05 * (place - (len(groups) - 1) / 2))  # or points would hide each other
        right.plot(
            ok["batch_size"] * aside,
            ok["error"] * 100,
            marker + "-",
            color=colour,
            lw=0.6,
            ms=7,
            mec="white",
            label=setting,
        )
    _peaks_frame(left, table)
    _errors_frame(right, table)
    right.set_xlim(left.get_xlim())
    legend(picture, 3)
    titles = dict.fromkeys(table["machine"] + "; predicted by PyTorch " + table["predictor"])
    inputs = ", ".join(dict.fromkeys(table["model"] + ", " + table["inputs"]))
    heading(picture, "\n".join([*titles, inputs]))
    return picture


def _look(row: pd.Series) -> tuple[str, str]:
    """Colour and marker of a setting."""
    colour = FORMAT_COLOURS[row["precision"]]
    if row["compile"]:
        return colour, "^"
    return colour, "D" if row["fused"] else "s" if row["channels_last"] else "o"


def _peaks_frame(axes: Axes, table: pd.DataFrame) -> None:
    for gib in table["limit_gib"].dropna().unique():
        limit(axes, gib, colour=DARK)
        words = f"{gib:.1f} GiB: all there is"
        axes.annotate(words, (0, gib), (4, 4), ("axes fraction", "data"), "offset points", size=8)
    marks = [
        Line2D([], [], color=DARK, lw=1, label="predicted"),
        Line2D([], [], color=DARK, marker="o", ls="none", label="measured"),
        Line2D([], [], color=DARK, marker="X", ms=9, ls="none", label="ran out of memory"),
    ]
    axes.legend(handles=marks, frameon=False, fontsize=8, loc="lower right")
    label(axes, "peak memory", size=10, yscale="log", ylabel="GiB")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _batches(axes, table, "images in a batch")


def _errors_frame(axes: Axes, table: pd.DataFrame) -> None:
    axes.axhline(0, color=DARK, lw=1)
    sizes = table["error"].abs().dropna()
    said = (
        f"median {sizes.median():.1%}, largest {sizes.max():.1%}" if len(sizes) else "none fitted"
    )
    label(axes, f"error: {said}", size=10, ylabel="predicted − measured, % of measured")
    _batches(axes, table, "images in a batch (points moved a little apart)")


def _batches(axes: Axes, table: pd.DataFrame, words: str) -> None:
    """The axis of batch sizes: evenly spaced where each is twice the last, and all with a tick."""
    batches = np.unique(table["batch_size"])
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, batches)
    axes.minorticks_off()
    axes.set_xlabel(words)
