"""Pictures of training on several GPUs: who sees what, what it brought, how far it goes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
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
    UNDER_WHITE,
    Picture,
    words_on,
)
from course.charts.primitives import heading, label, legend, lines, scatter_fit, timeline
from course.text import digits
from labs.day2_3_scaling.ring import Link, all_reduce_s

RANK_COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, ACCENT, DARK, GREY)


def plot_shares(tables: Mapping[str, pd.DataFrame]) -> Picture:
    """Who takes which image in which step: a column an image, a row an epoch, a colour a rank.

    An image that several ranks take is striped; one that nobody takes is left white.

    Args:
        tables: of `labs.day2_3_scaling.shares.shares`, by title.
    """
    height = max(table["epoch"].max() + 1 for table in tables.values())
    picture = Picture(10, 0.9 + len(tables) * (0.45 + 0.34 * height))
    for axes, (title, table) in zip(picture.panels(len(tables)), tables.items()):
        _share_rows(axes, table)
        label(axes, title, size=10)
    ranks = sorted(set(pd.concat(list(tables.values()))["rank"]))
    legend(picture, 8, {f"rank {rank}": RANK_COLOURS[rank % 8] for rank in ranks})
    return picture


def _share_rows(axes: Axes, table: pd.DataFrame) -> None:
    for (epoch, image), taken in table.groupby(["epoch", "image"]):
        for place, row in enumerate(taken.itertuples()):
            high = 0.86 / len(taken)
            low = epoch - 0.43 + place * high
            colour = RANK_COLOURS[row.rank % 8]
            axes.broken_barh([(image - 0.46, 0.92)], (low, high), color=colour, lw=0)
            words = {"ha": "center", "va": "center", "fontsize": 7, "color": words_on(colour)}
            axes.text(image, low + high / 2, row.step, **words)
    epochs = range(table["epoch"].max() + 1)
    axes.set_yticks(epochs, [f"epoch {epoch}" for epoch in epochs])
    axes.set(ylim=(max(epochs) + 0.5, -0.5), xlim=(-0.5, table["image"].max() + 0.5))
    axes.set_xlabel("number of the image in the set; in it, the step", fontsize=8)


def plot_measured(table: pd.DataFrame, node: pd.DataFrame | None = None) -> Picture:
    """Images per second beside the ideal, efficiency, and energy, for each count of GPUs.

    Args:
        table: what `labs.day2_3_scaling.efficiency.scaling` returns; a colour for each size of a
            GPU's share.
        node: of `labs.day2_3_scaling.node.beside_prediction`: points of another machine, each
            beside a hollow one for what was predicted, with its interval.
    """
    table = table if node is None or node.empty else pd.concat([table, node], ignore_index=True)
    picture = Picture(10, 3.6)
    speed, share, energy = picture.panels(1, 3)
    sizes = list(dict.fromkeys(table["images_each"]))
    for colour, size in zip(RANK_COLOURS, sizes):
        rows = table[table["images_each"] == size]
        if "predicted_efficiency" in rows:
            _beside(speed, share, rows[rows["predicted_efficiency"].notna()], colour)
        name = f"{size} images on each GPU"
        gpus = rows["gpus"]
        lines(speed, {name: (gpus, rows["images_per_s"])}, colours=colour, marker="o")
        alone = rows.loc[rows["gpus"] == 1, "images_per_s"]
        if len(alone):
            speed.plot(gpus, alone.iloc[0] * gpus, "--", color=colour, lw=1, alpha=0.6)
        efficiency = {"": (gpus, rows["efficiency"] * 100)}
        interval = {"": (rows["efficiency_low"] * 100, rows["efficiency_high"] * 100)}
        lines(share, efficiency, errors=interval, colours=colour, marker="o")
        lines(energy, {"": (gpus, rows["joules_per_image"])}, colours=colour, marker="o")
    share.axhline(100, color=GREY, lw=1, ls="--")
    titles = (
        "images per second (dashed: ideal)",
        "efficiency, %, with 95 % interval",
        "joules per image, all GPUs",
    )
    for axes, title in zip((speed, share, energy), titles):
        label(axes, title, size=10, xlabel="GPUs", xticks=sorted(set(table["gpus"])))
    for axes in (speed, energy):
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    speed.legend(frameon=False, fontsize=8)
    heading(picture, "\n".join(dict.fromkeys(table["machine"])))
    return picture


def _beside(speed: Axes, share: Axes, rows: pd.DataFrame, colour: str) -> None:
    """What was predicted of a row's images per second and efficiency, a little to its right."""
    for axes, name, unit in ((speed, "images_per_s", 1), (share, "efficiency", 100)):
        value, low, high = (rows[f"predicted_{name}{end}"] * unit for end in ("", "_low", "_high"))
        marks = {"fmt": "o", "mfc": "none", "color": colour, "capsize": 3, "alpha": 0.7}
        label = "predicted, with its interval"
        axes.errorbar(rows["gpus"] + 0.25, value, [value - low, high - value], label=label, **marks)


def plot_overlap(table: pd.DataFrame, backward_s: float, title: str = "") -> Picture:
    """Backward above, and under it when each bucket of gradients is ready, sent, and arrived.

    Args:
        table: what `labs.day2_3_scaling.ring.timeline` returns.
    """
    picture = Picture(10, 1.6 + 0.26 * min(len(table) + 1, 14))
    axes = picture.panel()
    lanes = {"backward": [(0, backward_s * 1e3, GREY, "")]}
    for number, row in enumerate(table.itertuples(), 1):
        hidden_s = max(0.0, min(row.end_s, backward_s) - row.start_s)
        begin = max(row.start_s, backward_s)
        pieces = [(row.start_s, hidden_s, SKY), (begin, row.end_s - begin, ACCENT)]
        lanes[f"{number}: {row.size / 1e6:.1f} MB"] = [
            (start * 1e3, lasts * 1e3, colour, "") for start, lasts, colour in pieces if lasts > 0
        ]
        axes.plot(row.ready_s * 1e3, number, "|", color=DARK, ms=8)
    timeline(axes, lanes, heights=[0.8])
    axes.set_yticklabels(name.rpartition(": ")[2] for name in lanes)
    axes.axvline(backward_s * 1e3, color=GREY, lw=1, ls=":")
    label(
        axes,
        title,
        size=10,
        xlabel="milliseconds since backward began; a dash: the bucket is ready",
    )
    late = "sent after it: the step is longer by this"
    legend(picture, 2, {"sent under backward": SKY, late: ACCENT})
    return picture


def plot_messages(table: pd.DataFrame, link: Link, title: str = "") -> Picture:
    """How long all-reduces were under way by their bytes, and what a link needs at least.

    Args:
        table: the messages of a `labs.day2_3_scaling.efficiency.Fit`, whose link it is.
    """
    picture = Picture(10, 3.9)
    axes = picture.panel()
    points, fits = {}, {}
    for ranks, rows in table.groupby("ranks"):
        sizes = np.geomspace(rows["bytes"].min(), rows["bytes"].max(), 99)
        points[f"{ranks} GPUs, as traced"] = rows["bytes"], rows["duration_s"] * 1e6
        fits[f"{ranks} GPUs, α and β alone"] = sizes, all_reduce_s(sizes, ranks, link) * 1e6
    scatter_fit(axes, points, fits, colours=(BLUE, ORANGE, GREEN), size=5)
    label(
        axes,
        title,
        size=10,
        xscale="log",
        yscale="log",
        xlabel="bytes that each rank puts in",
        ylabel="µs under way, waiting included",
    )
    axes.legend(frameon=False, fontsize=8.5, loc="upper left")
    return picture


def plot_beyond(curves: Mapping[str, pd.DataFrame], published: pd.DataFrame) -> Picture:
    """Efficiency to thousands of GPUs: what a model says, beside what was published.

    Args:
        curves: of `labs.day2_3_scaling.efficiency.predicted`, by name; columns low and high,
            where they are there, are drawn as a band.
        published: what `labs.day2_3_scaling.efficiency.published` returns.
    """
    picture = Picture(10, 4.6)
    axes = picture.panel()
    efficiencies = {name: (each["gpus"], each["efficiency"] * 100) for name, each in curves.items()}
    known = {name: each for name, each in curves.items() if "low" in each}
    bands = {name: (each["low"] * 100, each["high"] * 100) for name, each in known.items()}
    lines(axes, efficiencies, bands=bands, colours=(BLUE, ACCENT, GREEN, PURPLE, SKY))
    for letter, row in zip("ABCDEFGHIJ", published.itertuples()):
        device = row.device if isinstance(row.device, str) else "GPUs"
        spot = (row.gpus, row.efficiency * 100)
        said = f"{letter}  {row.who} {row.date[:4]}, {row.gpus:,} {device}: {digits(spot[1])} %"
        axes.plot(*spot, "D", color=UNDER_WHITE, ms=8, label=said)
        axes.text(*spot, letter, ha="center", va="center", fontsize=7, color="white")
    counts = sorted(set(pd.concat(list(curves.values()))["gpus"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(counts, [f"{count:,}" for count in counts], fontsize=8)
    axes.minorticks_off()
    axes.set(ylim=(0, 104), xlabel="GPUs", ylabel="efficiency, % of as many times one GPU")
    axes.legend(frameon=False, fontsize=8.5, loc="lower left")
    return picture
