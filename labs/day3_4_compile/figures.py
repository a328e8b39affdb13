"""Figures of the compiler: bytes, graphs, new shapes, when it has paid, modes, rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from course.charts.base import ACCENT, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, Picture
from course.charts.primitives import (
    bars,
    describe,
    label,
    legend,
    lines,
    mark,
    plot_bar_panels,
    stack,
)
from course.runs.run import Run
from course.text import digits
from labs.day3_4_compile.compiler_output import paid_after
from labs.day3_4_compile.measurements import compile_s

# What operators do, by their names in a table of `roofline.fusion_traffic`.
KINDS = {
    "convolutions": ("convolution", "convolution_backward"),
    "BatchNorm": ("native_batch_norm", "native_batch_norm_backward"),
    "ReLU": ("relu_", "threshold_backward"),
    "additions": ("add", "add_"),
}
MODE_COLOURS = {"eager": GREY, "default": BLUE, "reduce-overhead": GREEN}
GOES_ON = 1.25  # times as many steps as compiling takes to pay are shown


def plot_traffic(table: pd.DataFrame) -> Picture:
    """Draw the megabytes that an image moves, eager and fused (`roofline.fusion_traffic`)."""
    picture = Picture(9.5, 2.5)
    axes = picture.panel()
    kinds = {kind: table.reindex(names).sum() for kind, names in KINDS.items()}
    kinds["other"] = table.sum() - sum(kinds.values())
    parts = {kind: mb[["eager", "least"]] for kind, mb in kinds.items()}
    colours = (BLUE, GREEN, ORANGE, PURPLE, GREY)
    stack(axes, ["eager", "fused"], parts, unit=" MB", inside="{value:.0f}", colours=colours)
    label(axes, xlabel="MB that an image of a training step moves")
    legend(picture, 5)
    return picture


def plot_shapes(table: pd.DataFrame, machine: str) -> Picture:
    """Draw the seconds of the first step with each size of images, by how sizes are compiled.

    Args:
        table: what `measured.shapes` returns.
        machine: on which it was measured, and when.
    """
    growing = table[table["course"] == "growing"]
    by_way = growing.assign(dynamic=growing["dynamic"].map(str)).pivot(
        index="image_px", columns="dynamic", values="first_s"
    )
    picture = Picture(9.5, 3.0)
    axes = picture.panel()
    ways = {"as it comes": by_way["None"], "dynamic=False": by_way["False"]}
    names = [f"{side} px" for side in by_way.index]
    words = {way: [f"{each:.1f}" for each in seconds] for way, seconds in ways.items()}
    bars(axes, names, ways, words=words, colours=(BLUE, ORANGE), upright=True)
    label(axes, machine, ylabel="seconds, first step")
    legend(picture, 2)
    return picture


def plot_paid(runs: Mapping[str, Run], eager: Run) -> Picture:
    """Draw how far compiled runs are ahead of one that is not, over steps, if each goes on so.

    Args:
        runs: compiled ones by name.
        eager: the same step, not compiled.
    """
    picture = Picture(9.5, 3.2)
    axes = picture.panel()
    usual_s = eager.record.step_s
    behind = {name: compile_s(run) - compile_s(eager) for name, run in runs.items()}
    after = {
        name: paid_after(behind[name], usual_s, run.record.step_s) for name, run in runs.items()
    }
    ends = [count for count in after.values() if count < np.inf]
    steps = np.linspace(0, GOES_ON * max([1000, *ends]), 200)
    colours = dict(zip(runs, (BLUE, GREEN, PURPLE)))
    for name, run in runs.items():
        ahead = (usual_s - run.record.step_s) * steps - behind[name]
        axes.plot(steps, ahead, color=colours[name], label=name)
        if after[name] < np.inf:
            axes.plot(after[name], 0, "o", color=colours[name])
            mark(axes, after[name], 0, f"{after[name]:,.0f}", "below", colour=colours[name])
        count = f"{digits(after[name])} steps" if after[name] < np.inf else "never"
        describe(axes, name, [f"paid after {count}"])
    axes.axhline(0, color=GREY, lw=1)
    label(axes, eager.record.machine, xlabel="steps", ylabel="seconds ahead of eager")
    legend(picture, 3)
    return picture


def plot_modes(table: pd.DataFrame) -> Picture:
    """Draw images/s of each mode, a panel per batch size (a table of `measured.modes`)."""
    speeds = table.pivot(index="mode", columns="batch_size", values="images_per_s")
    speeds = speeds.loc[table["mode"].unique()]
    panels = {f"images/s, batch {size}": speeds[size] for size in speeds}
    colours = [MODE_COLOURS.get(mode, SKY) for mode in speeds.index]
    return plot_bar_panels(panels, table["machine"].iloc[0], colours=colours, sharex=True)


def plot_losses(eager: Run, compiled: Run, differences: pd.DataFrame) -> Picture:
    """Draw the losses of a step compiled and not, and how far they are apart.

    Args:
        differences: what `measured.losses` returns of them.
    """
    picture = Picture(9.5, 3.0)
    left, right = picture.panels(1, 2)
    runs = {"eager": eager, "compiled": compiled}
    curves = {name: (run.steps["step"], run.steps["loss"]) for name, run in runs.items()}
    lines(left, curves, colours=(GREY, BLUE), styles=("-", "--"))
    label(left, eager.record.machine, xlabel="step", ylabel="loss")
    left.legend(frameon=False, fontsize=9)
    percent = 100 * differences["difference"]
    lines(right, {"": (differences["step"], percent)}, colours=ACCENT)
    right.axhline(0, color=GREY, lw=1)
    describe(right, "", [f"they differ by at most {percent.abs().max():.2f} %"])
    label(right, xlabel="step", ylabel="compiled against eager, %")
    return picture
