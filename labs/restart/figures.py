"""Figures of restarts and checkpoints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from course import Run
from course.charts import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    Picture,
    describe,
    label,
    legend,
    limit,
    lines,
)
from course.lab import digits
from labs.restart.measurements import compare_losses, first_step, lost_share


def plot_restart(run: Run, reference: Run) -> Picture:
    """Draw the losses of a run that was stopped over those of one that was not."""
    table = compare_losses(run, reference)
    first = first_step(run)
    picture = Picture(10, 3.2)
    axes = picture.panel()
    axes.plot(table.index, table["uninterrupted"], color=GREY, lw=5, label="never stopped")
    parts = {f"stopped, process {number}": part for number, part in table.groupby("process")}
    curves = {name: (part.index, part["stopped"]) for name, part in parts.items()}
    lines(axes, curves, colours=(ORANGE, BLUE), marker="o")
    limit(axes, first - 0.5, "the new process begins", colour=DARK, along="x")
    same = f"{table['same'].sum()} of {len(table)} steps have a bitwise identical loss"
    describe(axes, "", [f"it resumes at step {first}; {same}"])
    label(axes, xlabel="step", ylabel="loss")
    axes.legend(frameon=False, fontsize=9)
    return picture


def plot_long_run(first: Run, second: Run) -> Picture:
    """Draw the curves of a training that a second run continued: loss, accuracy, learning rate.

    Args:
        first: the run that was stopped.
        second: the run that continued it, whose tables have the steps and epochs of both.
    """
    stop, steps = len(first.steps), second.steps.set_index("step")
    stopped = f"stopped after {stop} steps"
    top1 = pd.Series([100 * epoch["val_top1"] for epoch in second.record.epochs])
    top1.index = (top1.index + 1) * second.config.steps
    curves = {
        "training loss": steps["loss"],
        "validation top-1, %": top1,
        "learning rate": steps["lr"],
    }
    counts = (f"{run.gpus} rank{'s' * (run.gpus > 1)}" for run in (first, second))
    parts = [f"{part} run, {count}" for part, count in zip(("first", "second"), counts)]
    picture = Picture(10, 3.2)
    for axes, (name, curve) in zip(picture.panels(1, 3), curves.items()):
        halves = (curve[curve.index < stop], curve[curve.index >= stop])
        drawn = {part: (half.index, half) for part, half in zip(parts, halves)}
        lines(axes, drawn, colours=(ORANGE, BLUE), marker="o")
        limit(axes, stop - 0.5, stopped, colour=DARK, along="x")
        label(axes, name, size=11, xlabel="step", ylim=(0, None))
    describe(axes, "", [stopped])
    legend(picture)
    return picture


def plot_checkpoint_interval(save_min: float, nodes: Sequence[int], broken_days: float) -> Picture:
    """Draw the share of lost time over the interval between checkpoints, by number of nodes."""
    picture = Picture(10, 3.2)
    axes = picture.panel()
    hours = np.geomspace(0.02, 24, 200)
    for count, colour in zip(nodes, (GREEN, BLUE, ORANGE)):
        percent = 100 * lost_share(save_min, hours, count, broken_days)
        best = percent.argmin()
        name = f"{count:,} node{'s' * (count > 1)}"
        axes.plot(hours, percent, color=colour, label=name)
        axes.plot(hours[best], percent[best], "o", color=colour)
        best_h = hours[best]
        interval = f"{digits(best_h)} h" if best_h >= 1 else f"{60 * best_h:.0f} min"
        describe(axes, name, [f"best every {interval}, {digits(percent[best])} % lost"])
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([0.05, 0.25, 1, 4, 24], ["3 min", "15 min", "1 h", "4 h", "1 day"])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.set(ylim=(0.1, 100), xlabel="time between two checkpoints", ylabel="share of time lost")
    legend(picture)
    return picture
