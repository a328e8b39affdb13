"""Pictures of the compiler: bytes, graphs, new shapes, when it has paid, modes, rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from course.charts.base import (
    ACCENT,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    clean,
    stacked_bar,
)
from course.runs.run import Run
from course.text import digits
from course.topics.compilation.made import paid_after
from course.topics.compilation.measured import compile_s

# What operators do, by their names in a table of `roofline.fused`.
KINDS = {
    "convolutions": ("convolution", "convolution_backward"),
    "BatchNorm": ("native_batch_norm", "native_batch_norm_backward"),
    "ReLU": ("relu_", "threshold_backward"),
    "additions": ("add", "add_"),
}
KIND_COLOURS = (BLUE, GREEN, ORANGE, PURPLE, GREY)
MODE_COLOURS = {"eager": GREY, "default": BLUE, "reduce-overhead": GREEN}
LEAST_SHARE = 0.05  # of a bar, for words in it
GOES_ON = 1.25  # times as many steps as compiling takes to pay are shown


def traffic(table: pd.DataFrame) -> Picture:
    """Megabytes that an image moves, eager and fused, by what moves them.

    Args:
        table: what `roofline.fused` returns.
    """
    bars = {"eager": table["eager"], "fused": table["least"]}
    said = "; ".join(f"{name}: {digits(of.sum())} MB an image" for name, of in bars.items())
    picture = Picture(9.5, 2.5, said)
    axes = picture.add_subplot()
    for place, of in enumerate(bars.values()):
        kinds = {kind: of.reindex(each).sum() for kind, each in KINDS.items()}
        kinds["other"] = of.sum() - sum(kinds.values())
        parts = [
            (kind, mb, colour, f"{mb:.0f}" if mb > LEAST_SHARE * of.sum() else "")
            for (kind, mb), colour in zip(kinds.items(), KIND_COLOURS)
        ]
        end = stacked_bar(axes, place, parts, height=0.6)
        axes.text(end, place, f"  {end:.0f} MB", va="center", fontsize=9)
    axes.set_yticks([0, 1], list(bars))
    axes.invert_yaxis()
    axes.set_xlim(0, 1.12 * table["eager"].sum())
    axes.set_xlabel("MB that an image of a training step moves")
    clean(axes)
    picture.legend(loc="outside lower center", ncols=5, frameon=False, fontsize=9)
    return picture


def mended(table: pd.DataFrame) -> Picture:
    """Graphs, and milliseconds a call, as break after break is mended.

    Args:
        table: what `made.mended` returns.
    """
    said = "; ".join(
        f"{row.version}: {row.graphs} graphs, {digits(row.ms)} ms" for row in table.itertuples()
    )
    picture = Picture(9.5, 2.8, said)
    left, right = picture.subplots(1, 2, sharey=True)
    for axes, column, colour in ((left, "graphs", BLUE), (right, "ms", ACCENT)):
        _bars(axes, list(table["version"]), table[column], colour)
    left.invert_yaxis()  # of both: they share it
    left.set_xlabel("graphs")
    right.set_xlabel("ms a call")
    return picture


def _bars(axes: Axes, names: list[str], values: pd.Series, colour: str) -> None:
    bars = axes.barh(names, values, color=colour, height=0.6)
    axes.bar_label(bars, [digits(value) for value in values], padding=4, fontsize=9)
    axes.set_xlim(0, 1.18 * values.max())
    clean(axes)


def shapes(table: pd.DataFrame, machine: str) -> Picture:
    """Seconds of the first step with each size of images, by how sizes are compiled.

    Args:
        table: what `measured.shapes` returns.
        machine: on which it was measured, and when.
    """
    growing = table[table["course"] == "growing"]
    sides = sorted(growing["image_px"].unique())
    told = [
        f"{row.image_px} px, dynamic={row.dynamic}: {row.first_s:.1f} s"
        for row in growing.itertuples()
    ]
    picture = Picture(9.5, 3.0, "; ".join(told))
    axes = picture.add_subplot()
    ways = ((None, "as it comes", BLUE), (False, "dynamic=False", ORANGE))
    for shift, (dynamic, name, colour) in zip((-0.2, 0.2), ways):
        is_way = growing["dynamic"].map(lambda each, dynamic=dynamic: each is dynamic)
        seconds = growing[is_way].set_index("image_px")["first_s"].reindex(sides)
        bars = axes.bar(np.arange(len(sides)) + shift, seconds, 0.38, color=colour, label=name)
        axes.bar_label(bars, [f"{each:.1f}" for each in seconds], padding=2, fontsize=9)
    axes.set_xticks(np.arange(len(sides)), [f"{side} px" for side in sides])
    axes.set_ylabel("seconds, first step")
    axes.set_title(machine, loc="left", fontsize=9)
    axes.set_ylim(0, 1.12 * growing["first_s"].max())
    axes.legend(frameon=False, fontsize=9)
    clean(axes)
    return picture


def paid(runs: Mapping[str, Run], eager: Run) -> Picture:
    """How far compiled runs are ahead of one that is not, over steps, if each goes on as it did.

    Args:
        runs: compiled ones by name.
        eager: the same step, not compiled.
    """
    saved = {name: eager.record.step_s - run.record.step_s for name, run in runs.items()}
    behind = {name: compile_s(run) - compile_s(eager) for name, run in runs.items()}
    after = {
        name: paid_after(behind[name], eager.record.step_s, run.record.step_s)
        for name, run in runs.items()
    }
    said = "; ".join(
        f"{name}: paid after " + (f"{digits(steps)} steps" if steps < np.inf else "never")
        for name, steps in after.items()
    )
    picture = Picture(9.5, 3.2, said)
    axes = picture.add_subplot()
    steps = np.linspace(
        0, GOES_ON * max([1000, *(each for each in after.values() if each < np.inf)]), 200
    )
    for (name, back), colour in zip(behind.items(), (BLUE, GREEN, PURPLE)):
        axes.plot(steps, saved[name] * steps - back, color=colour, label=name)
        if after[name] < np.inf:
            axes.plot(after[name], 0, "o", color=colour)
            axes.annotate(
                f"{after[name]:,.0f}",
                (after[name], 0),
                (4, -14),
                textcoords="offset points",
                fontsize=9,
                color=colour,
            )
    axes.axhline(0, color=GREY, lw=1)
    axes.set(xlabel="steps", ylabel="seconds ahead of eager")
    axes.set_title(eager.record.machine, loc="left", fontsize=9)
    axes.legend(frameon=False, fontsize=9)
    clean(axes)
    return picture


def modes(table: pd.DataFrame) -> Picture:
    """Images/s of each mode, a panel for each batch size.

    Args:
        table: what `measured.modes` returns.
    """
    said = "; ".join(
        f"{row.mode}, batch {row.batch_size}: {digits(row.images_per_s)} images/s"
        for row in table.itertuples()
    )
    picture = Picture(9.5, 2.8, said)
    sizes = sorted(table["batch_size"].unique())
    for axes, size in zip(picture.subplots(1, len(sizes), sharey=True, squeeze=False)[0], sizes):
        rows = table[table["batch_size"] == size]
        colours = [MODE_COLOURS.get(mode, SKY) for mode in rows["mode"]]
        bars = axes.barh(rows["mode"], rows["images_per_s"], color=colours, height=0.6)
        axes.bar_label(bars, [digits(each) for each in rows["images_per_s"]], padding=4, fontsize=9)
        axes.set_xlim(0, 1.2 * table["images_per_s"].max())
        axes.set_xlabel("images/s")
        axes.set_title(f"batch {size}", loc="left", fontsize=9)
        clean(axes)
    axes.invert_yaxis()  # of all: they share it
    picture.suptitle(table["machine"].iloc[0], fontsize=9)
    return picture


def losses(eager: Run, compiled: Run, differences: pd.DataFrame) -> Picture:
    """The loss of a step compiled and not, and how far one is from the other.

    Args:
        differences: what `measured.losses` returns of them.
    """
    most = differences["difference"].abs().max()
    picture = Picture(9.5, 3.0, f"Two losses over steps, which differ by at most {most:.2%}")
    left, right = picture.subplots(1, 2)
    for name, run, line in (("eager", eager, "-"), ("compiled", compiled, "--")):
        colour = GREY if name == "eager" else BLUE
        left.plot(run.steps["step"], run.steps["loss"], color=colour, ls=line, lw=2, label=name)
    left.set(xlabel="step", ylabel="loss")
    left.set_title(eager.record.machine, loc="left", fontsize=9)
    left.legend(frameon=False, fontsize=9)
    right.plot(differences["step"], 100 * differences["difference"], color=ACCENT)
    right.axhline(0, color=GREY, lw=1)
    right.set(xlabel="step", ylabel="compiled beside eager, %")
    for axes in (left, right):
        clean(axes)
    return picture
