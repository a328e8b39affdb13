"""Figures of training on several GPUs: speed and efficiency, overlap, messages, extrapolation."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

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
    heading,
    label,
    legend,
    limit,
    lines,
    scatter_fit,
    timeline,
)
from course.lab import digits
from labs.scaling.model import Link, all_reduce_s


def plot_scaling(table: pd.DataFrame, node: pd.DataFrame) -> Picture:
    """Draw images/s next to the ideal, efficiency and energy, by number of GPUs.

    Args:
        table: from `efficiency.efficiency_table`; one colour per number of images on a GPU.
        node: from `efficiency.node_with_prediction`: points of a different machine, each next to a
            hollow one for its prediction.
    """
    table = pd.concat([table, node], ignore_index=True) if len(node) else table
    picture = Picture(10, 3.6)
    speed, share, energy = picture.panels(1, 3)
    for colour, (images, rows) in zip((BLUE, ORANGE, GREEN), table.groupby("images_per_gpu")):
        if "predicted_efficiency" in rows:
            _draw_prediction(speed, share, rows.dropna(subset="predicted_efficiency"), colour)
        gpus, look = rows["gpus"], {"colours": colour, "marker": "o"}
        lines(speed, {f"{images} images on each GPU": (gpus, rows["images_per_s"])}, **look)
        single = rows.loc[gpus == 1, "images_per_s"]
        speed.plot(gpus, gpus * single.min(), "--", color=colour, lw=1, alpha=0.6)
        interval = {"": (rows["efficiency_low"] * 100, rows["efficiency_high"] * 100)}
        lines(share, {"": (gpus, rows["efficiency"] * 100)}, errors=interval, **look)
        lines(energy, {"": (gpus, rows["joules_per_image"])}, **look)
    limit(share, 100, colour=GREY)
    ticks = {"xlabel": "GPUs", "xticks": sorted(set(table["gpus"]))}
    label(speed, "images per second (dashed: ideal)", size=10, **ticks)
    label(share, "efficiency, %, with 95 % interval", size=10, **ticks)
    label(energy, "joules per image, all GPUs", size=10, **ticks)
    for axes in (speed, energy):
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    speed.legend(frameon=False, fontsize=8)
    heading(picture, "\n".join(dict.fromkeys(table["machine"])))
    return picture


def _draw_prediction(speed: Axes, share: Axes, rows: pd.DataFrame, colour: str) -> None:
    """Draw predicted images/s and efficiency with their intervals, a little to the right."""
    for axes, name, unit in ((speed, "images_per_s", 1), (share, "efficiency", 100)):
        value, low, high = (rows[f"predicted_{name}{end}"] * unit for end in ("", "_low", "_high"))
        look = {"fmt": "o", "mfc": "none", "color": colour, "capsize": 3, "alpha": 0.7}
        words = "predicted, with its interval"
        axes.errorbar(rows["gpus"] + 0.25, value, [value - low, high - value], label=words, **look)


def plot_overlap(table: pd.DataFrame, backward_s: float, title: str = "") -> Picture:
    """Draw backward, and below it when each bucket of gradients is ready and when it is sent.

    Args:
        table: from `model.bucket_timeline`.
    """
    picture = Picture(10, 1.6 + 0.26 * min(len(table) + 1, 14))
    axes = picture.panel()
    lanes = {"backward": [(0, backward_s * 1e3, GREY, "")]}
    for number, row in enumerate(table.itertuples(), 1):
        middle_s = min(max(row.start_s, backward_s), row.end_s)
        spans = [(row.start_s, middle_s, SKY), (middle_s, row.end_s, ACCENT)]
        lanes[f"{number}: {row.size / 1e6:.1f} MB"] = [
            (begin * 1e3, (end - begin) * 1e3, colour, "") for begin, end, colour in spans
        ]
        axes.plot(row.ready_s * 1e3, number, "|", color=DARK, ms=8)
    timeline(axes, lanes, heights=[0.8])
    axes.set_yticklabels(name.rpartition(": ")[2] for name in lanes)
    axes.axvline(backward_s * 1e3, color=GREY, lw=1, ls=":")
    words = "milliseconds since backward began; a dash: the bucket is ready"
    label(axes, title, size=10, xlabel=words)
    exposed = "sent after it: makes the step longer"
    legend(picture, 2, {"sent under backward": SKY, exposed: ACCENT})
    return picture


def plot_links(tables: Mapping[str, pd.DataFrame], links: Mapping[str, Link]) -> Picture:
    """Draw the duration of all-reduces by size, and the model's line for each link.

    Args:
        tables: from `links.measure_link` or `recorded_links`, by name.
        links: α and β of each.
    """
    picture = Picture(10, 4.2)
    axes = picture.panel()
    points, fits = {}, {}
    for name, rows in tables.items():
        sizes = np.geomspace(rows["bytes"].min(), rows["bytes"].max(), 99)
        points[name] = rows["bytes"], rows["seconds"] * 1e6
        seconds = all_reduce_s(sizes, rows["ranks"].iloc[0], links[name])
        fits[f"{name}, α and β alone"] = sizes, seconds * 1e6
    scatter_fit(axes, points, fits, colours=(GREEN, BLUE, SKY, ORANGE, ACCENT, PURPLE), size=6)
    names = {"xlabel": "bytes that each rank contributes", "ylabel": "µs of an all-reduce"}
    label(axes, "points: measured; lines: α and β", size=10, xscale="log", yscale="log", **names)
    handles, words = (part[: len(tables)] for part in axes.get_legend_handles_labels())
    axes.legend(handles, words, frameon=False, fontsize=8.5, loc="upper left")
    return picture


def plot_extrapolation(curves: Mapping[str, pd.DataFrame], published: pd.DataFrame) -> Picture:
    """Draw the model's efficiency up to thousands of GPUs, next to published ones.

    Args:
        curves: from `model.predict_scaling`, by name.
        published: from `efficiency.published_efficiencies`.
    """
    picture = Picture(10, 4.6)
    axes = picture.panel()
    efficiencies = {
        name: (curve["gpus"], curve["efficiency"] * 100) for name, curve in curves.items()
    }
    lines(axes, efficiencies, colours=(BLUE, ACCENT, GREEN, PURPLE, SKY))
    for letter, row in zip("ABCDEFGHIJ", published.fillna({"device": "GPUs"}).itertuples()):
        spot = (row.gpus, row.efficiency * 100)
        source = f"{row.who} {row.date[:4]}, {row.gpus:,} {row.device}: {digits(spot[1])} %"
        axes.plot(*spot, "D", color="#6B6B6B", ms=8, label=f"{letter}  {source}")
        axes.text(*spot, letter, ha="center", va="center", fontsize=7, color="white")
    counts = sorted(set(pd.concat(list(curves.values()))["gpus"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts], fontsize=8)
    axes.minorticks_off()
    axes.set(ylim=(0, 104), xlabel="GPUs", ylabel="efficiency, % of N times one GPU")
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    return picture
