"""Pictures from numbers. Functions take DataFrames or records and return a Picture."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from course.records import Record, digits

# Okabe and Ito's colours, which people with colour-blindness can tell apart.
PHASE_COLOURS = {
    "load": "#E69F00",
    "forward": "#56B4E9",
    "backward": "#0072B2",
    "update": "#009E73",
}
GREY, DARK, ACCENT = "#9A9A9A", "#333333", "#D55E00"


class Picture(Figure):
    """A figure that a notebook shows by itself, in any front end and under papermill."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), dpi=110, layout="constrained")

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()


def ladder(table: pd.DataFrame) -> Picture:
    """Images per second, rung by rung, with quartiles and the ratio to the first rung.

    Args:
        table: what `course.ladder` returns.
    """
    table = table[table["images_per_s"].notna()]
    picture = Picture(8.5, 1.1 + 0.55 * max(len(table), 1))
    axes = picture.add_subplot()
    places = np.arange(len(table))
    speed = table["images_per_s"]
    spread = np.array([speed - table["images_per_s_q1"], table["images_per_s_q3"] - speed])
    colours = [GREY, *["#0072B2"] * len(table)][: len(table)]
    axes.barh(places, speed, xerr=spread, color=colours, height=0.62, ecolor=DARK, capsize=3)
    edge = table["images_per_s_q3"].max() if len(table) else 1
    for place, row in zip(places, table.itertuples()):
        memory = f", {row.peak_gib:.1f} GiB" if pd.notna(row.peak_gib) else ""
        text = f"{digits(row.images_per_s)} images/s = {digits(row.ratio)}×{memory}"
        axes.text(row.images_per_s_q3 + edge * 0.015, place, text, va="center", fontsize=9)
    axes.set_yticks(places, table["rung"])
    axes.set_xlim(0, edge * 1.42)
    axes.invert_yaxis()
    axes.set_xlabel("images per second: median, with quartiles")
    setups = dict.fromkeys(table["machine"] + ", " + table["setup"])
    axes.set_title("\n".join(setups), loc="left", fontsize=9)
    _clean(axes)
    return picture


def step_and_loss(runs: Sequence[tuple[str, Record, pd.DataFrame]]) -> Picture:
    """Where a step's time goes (left) and whether the loss stays the same (right).

    Args:
        runs: (name, record, steps) of each run, the one to compare with first.
    """
    picture = Picture(10, 1.9 + 0.5 * len(runs))
    left, right = picture.subplots(1, 2, width_ratios=(3, 2))
    _step_bars(left, runs)
    colours = [ACCENT] if len(runs) == 1 else [GREY, ACCENT]
    for (name, _, steps), colour in zip(runs, colours):
        if "loss" in steps:
            right.plot(steps["step"], steps["loss"], "o-", ms=3, lw=1.5, color=colour, label=name)
    right.set_xlabel("training step")
    right.set_title("loss", loc="left", fontsize=11)
    if right.lines:
        right.legend(frameon=False, fontsize=9)
    _clean(right)
    return picture


def _step_bars(axes: Axes, runs: Sequence[tuple[str, Record, pd.DataFrame]]) -> None:
    for place, (_, record, _) in enumerate(runs):
        begin = 0.0
        for phase, colour in PHASE_COLOURS.items():
            width = (getattr(record, f"{phase}_s") or 0) * 1e3
            label = phase if place == 0 else None
            axes.barh(place, width, left=begin, color=colour, height=0.6, label=label)
            begin += width
        axes.text(begin, place, f"  {digits(begin)} ms", va="center", fontsize=9)
    axes.set_yticks(range(len(runs)), [name for name, _, _ in runs])
    axes.invert_yaxis()
    axes.margins(x=0.16)
    axes.set_xlim(left=0)
    axes.set_xlabel("milliseconds of one step: medians of its phases")
    axes.set_title("where a step's time goes", loc="left", fontsize=11)
    axes.legend(ncols=4, frameon=False, fontsize=9, loc="upper center", bbox_to_anchor=(0.5, -0.32))
    _clean(axes)


def samples(root: Path, classes: int = 16, per_class: int = 3) -> Picture:
    """A few training images of each class of an ImageNet-style folder, as they lie on disk."""
    from PIL import Image

    folders = sorted(path for path in (root / "train").iterdir() if path.is_dir())[:classes]
    columns = min(8, len(folders))
    blocks = -(-len(folders) // columns)
    picture = Picture(1.25 * columns, blocks * (per_class * 0.95 + 0.25))
    grid = picture.subplots(blocks * per_class, columns, squeeze=False)
    for axes in grid.flat:
        axes.axis("off")
    for number, folder in enumerate(folders):
        block, column = divmod(number, columns)
        for row, path in enumerate(sorted(folder.iterdir())[:per_class]):
            axes = grid[block * per_class + row, column]
            with Image.open(path) as image:
                image.thumbnail((160, 160))
                axes.imshow(image)
            if row == 0:
                axes.set_title(folder.name, fontsize=8)
    return picture


def layers(table: pd.DataFrame) -> Picture:
    """Where a network's parameters and its arithmetic are (a table of `models.describe`)."""
    table = table[table["parameters"] > 0]
    picture = Picture(8, 2.6)
    for axes, column, title, unit in zip(
        picture.subplots(1, 2, sharey=True), ("parameters", "forward_gflop"),
        ("parameters (millions)", "arithmetic of one image (GFLOP, forward)"), (1e6, 1),
    ):  # fmt: skip
        axes.barh(table["part"], table[column] / unit, color="#0072B2", height=0.65)
        axes.set_title(title, loc="left", fontsize=10)
        _clean(axes)
    axes.invert_yaxis()
    return picture


def queue_sketch() -> Picture:
    """A sketch, not a measurement: a host that puts work into a device's queue and goes on."""
    picture = Picture(9, 2.3)
    axes = picture.add_subplot()
    starts = [0.0, 0.5, 1.0, 1.5]
    for number, start in enumerate(starts):
        axes.barh(1, 0.4, left=start, color="#56B4E9", height=0.45)
        axes.text(start + 0.2, 1, f"ask {number + 1}", ha="center", va="center", fontsize=8)
        axes.barh(0, 1.9, left=0.3 + 2 * number, color="#0072B2", height=0.45)
        axes.text(1.25 + 2 * number, 0, f"compute {number + 1}", ha="center", va="center",
                  color="white", fontsize=8)  # fmt: skip
    end = 0.3 + 2 * 3 + 1.9
    axes.barh(1, end - 2.0, left=2.0, color="white", edgecolor=GREY, hatch="///", height=0.45)
    axes.text((2 + end) / 2, 1.36, "synchronize(): the host waits", ha="center", fontsize=8)
    for place, text in ((2.0, "a clock read here times the asking"),
                        (end, "read here it times the work")):  # fmt: skip
        axes.axvline(place, color=ACCENT, lw=1.2, ls="--")
        axes.text(place + 0.06, 0.5, text, color=ACCENT, fontsize=8, va="center")
    axes.set_yticks([0, 1], ["device", "host"])
    axes.set_xlim(0, end + 2.4)
    axes.set_ylim(-0.4, 1.6)
    axes.set_xticks([])
    axes.set_xlabel("time →   (a sketch)")
    _clean(axes)
    return picture


def _clean(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
