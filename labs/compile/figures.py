"""Figures of the compiler: bytes, graphs, new shapes, when it has paid, modes, rounding."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from course import Run
from course.charts import (
    ACCENT,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    Picture,
    bars,
    describe,
    label,
    legend,
    lines,
    mark,
    plot_bar_panels,
    stack,
)
from course.lab import digits
from labs.compile.compiler import break_even_steps
from labs.compile.measurements import compare_losses, compile_s, recorded_part

# Operators by their names in a table of `roofline.fused`.
KINDS = {
    "convolutions": ("convolution", "convolution_backward"),
    "BatchNorm": ("native_batch_norm", "native_batch_norm_backward"),
    "ReLU": ("relu_", "threshold_backward"),
    "additions": ("add", "add_"),
}
MODE_COLOURS = {"eager": GREY, "default": BLUE, "reduce-overhead": GREEN}


def plot_traffic(table: pd.DataFrame) -> Picture:
    """Draw the megabytes moved per image, eager and fused (a table of `roofline.fused`)."""
    picture = Picture(9.5, 2.5)
    axes = picture.panel()
    kinds = {kind: table.reindex(names).sum() for kind, names in KINDS.items()}
    kinds["other"] = table.sum() - sum(kinds.values())
    parts = {kind: mb[["eager", "least"]] for kind, mb in kinds.items()}
    colours = (BLUE, GREEN, ORANGE, PURPLE, GREY)
    stack(
        axes,
        ["eager", "fused"],
        parts,
        unit=" MB",
        inside="{value:.0f}",
        least=0.04,
        colours=colours,
    )
    label(axes, xlabel="MB that an image of a training step moves")
    legend(picture, 5)
    return picture


def plot_shapes(machine: str, title: str) -> Picture:
    """Draw the seconds of the first step with each image size, on a recorded machine."""
    rows = pd.DataFrame(recorded_part(machine, "shapes")["rows"])
    growing = rows[rows["course"] == "growing"]
    first_s = growing.assign(dynamic=growing["dynamic"].map(str)).pivot_table(
        "first_s", "image_px", "dynamic", aggfunc="first"
    )
    # Both settings have the same graph for the first size, which was in the second one's cache.
    first_s.iloc[0] = first_s["None"].iloc[0]
    series = {"dynamic=None": first_s["None"], "dynamic=False": first_s["False"]}
    words = {name: [f"{value:.1f}" for value in seconds] for name, seconds in series.items()}
    picture = Picture(9.5, 3.0)
    axes = picture.panel()
    names = [f"{side} px" for side in first_s.index]
    bars(axes, names, series, words=words, colours=(BLUE, ORANGE), upright=True)
    label(axes, title, ylabel="seconds, first step")
    legend(picture, 2)
    return picture


def plot_break_even(runs: Mapping[str, Run], eager: Run) -> Picture:
    """Draw how many seconds compiled runs are ahead of an eager one, over their steps."""
    picture = Picture(9.5, 3.2)
    axes = picture.panel()
    eager_s = eager.record.step_s
    extra_s = {name: compile_s(run) - compile_s(eager) for name, run in runs.items()}
    counts = {
        name: break_even_steps(extra_s[name], eager_s, run.record.step_s)
        for name, run in runs.items()
    }
    last = 1.25 * max(count for count in (1000, *counts.values()) if count < np.inf)
    for (name, run), colour in zip(runs.items(), (BLUE, GREEN, PURPLE)):
        ends = [-extra_s[name], (eager_s - run.record.step_s) * last - extra_s[name]]
        axes.plot([0, last], ends, color=colour, label=name)
        words = "never"
        if counts[name] < np.inf:
            words = f"after {digits(counts[name])} steps"
            axes.plot(counts[name], 0, "o", color=colour)
            mark(axes, counts[name], 0, f"{counts[name]:,.0f}", "below", colour=colour)
        describe(axes, name, [f"pays {words}"])
    axes.axhline(0, color=GREY, lw=1)
    label(axes, eager.record.machine, xlabel="steps", ylabel="seconds ahead of eager")
    legend(picture, 3)
    return picture


def plot_modes(table: pd.DataFrame) -> Picture:
    """Draw images/s of each mode, a panel per batch size (a table of `modes_table`)."""
    speeds = table.pivot(index="mode", columns="batch_size", values="images_per_s")
    speeds = speeds.loc[table["mode"].unique()]
    panels = {f"images/s, batch {size}": speeds[size] for size in speeds}
    colours = [MODE_COLOURS[mode] for mode in speeds.index]
    return plot_bar_panels(panels, table["machine"].iloc[0], colours=colours, sharex=True)


def plot_losses(eager: Run, compiled: Run) -> Picture:
    """Draw the losses of a compiled and an eager run, and their relative difference."""
    picture = Picture(9.5, 3.0)
    left, right = picture.panels(1, 2)
    runs = {"eager": eager, "compiled": compiled}
    curves = {name: (run.steps["step"], run.steps["loss"]) for name, run in runs.items()}
    lines(left, curves, colours=(GREY, BLUE), styles=("-", "--"))
    label(left, eager.record.machine, xlabel="step", ylabel="loss")
    left.legend(frameon=False, fontsize=9)
    table = compare_losses(compiled, eager)
    percent = 100 * table["difference"]
    lines(right, {"": (table["step"], percent)}, colours=ACCENT)
    right.axhline(0, color=GREY, lw=1)
    describe(right, "", [f"they differ by at most {percent.abs().max():.2f} %"])
    label(right, xlabel="step", ylabel="compiled against eager, %")
    return picture
