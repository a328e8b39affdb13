"""Figures of a training that is stopped, and of what saving costs it."""

from __future__ import annotations

import numpy as np

from course.charts.base import BLUE, DARK, GREEN, GREY, ORANGE, Picture
from course.charts.primitives import describe, label, legend, limit, lines
from course.runs.run import Run
from course.text import digits
from labs.day4_5_practice.saving import NEVER, joined, lost, steps_of, way_of

HUES = {"never": GREY, "torch.save": ORANGE, "async_save": BLUE}


def plot_stopped(run: Run, whole: Run) -> Picture:
    """Draw the losses of a run that was stopped, on those of the same training that was not."""
    table = joined(run, whole)
    at = run.record.evidence.get("began_at", 0)
    picture = Picture(10, 3.2)
    axes = picture.panel()
    axes.plot(table.index, table["whole"], color=GREY, lw=5, label="never stopped")
    parts = {f"stopped, process {number}": part for number, part in table.groupby("process")}
    curves = {name: (part.index, part["stopped"]) for name, part in parts.items()}
    lines(axes, curves, colours=(ORANGE, BLUE), marker="o")
    limit(axes, at - 0.5, "goes on", colour=DARK, along="x")
    same = f"{table['same'].sum()} of {len(table)} steps have the same loss to the bit"
    describe(axes, "", [f"it goes on at step {at}; {same}"])
    label(axes, xlabel="step", ylabel="loss")
    axes.legend(frameon=False, fontsize=9)
    return picture


def plot_steps(runs: list[Run], machine: str) -> Picture:
    """Draw how long each step took, one row per run: steps after a save stand out."""
    picture = Picture(10, 1.0 + 1.3 * len(runs))
    rows = picture.panels(len(runs), sharex=True, sharey=True)
    for axes, run in zip(rows, runs):
        table = run.steps[run.steps["step"] >= run.config.warmup_steps]
        way = way_of(run.config)
        axes.bar(table["step"], table["step_s"] * 1e3, color=HUES[way])
        label(axes, way, size=10, ylabel="ms")
        row = steps_of(run)
        text = f"{digits(row['step_ms'])} ms"
        if way != NEVER:
            behind = digits(row["behind_ms"])
            text += f", after a save (every {row['every']} steps) {behind} ms"
        describe(axes, way, [text])
    rows[-1].set_xlabel(f"step; {machine}")
    return picture


def plot_best_distance(save_min: float, nodes: tuple[int, ...], broken_days: float) -> Picture:
    """Draw the time lost by saving too often, or too rarely, for several numbers of nodes."""
    picture = Picture(10, 3.2)
    axes = picture.panel()
    hours = np.geomspace(0.02, 24, 200)
    for count, colour in zip(nodes, (GREEN, BLUE, ORANGE)):
        shares = 100 * np.array([lost(save_min, each, count, broken_days) for each in hours])
        best = shares.argmin()
        name = f"{count:,} node{'s' * (count > 1)}"
        axes.plot(hours, shares, color=colour, label=name)
        axes.plot(hours[best], shares[best], "o", color=colour)
        describe(axes, name, [f"best every {_apart(hours[best])}, {digits(shares[best])} % lost"])
    axes.set(xscale="log", yscale="log")
    axes.set_xticks([0.05, 0.25, 1, 4, 24], ["3 min", "15 min", "1 h", "4 h", "1 day"])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1 %", "1 %", "10 %", "100 %"])
    frame = {"xlabel": "between two checkpoints", "ylabel": "of the time is lost"}
    label(axes, ylim=(0.1, 100), **frame)
    legend(picture)
    return picture


def _apart(hours: float) -> str:
    return f"{digits(hours)} h" if hours >= 1 else f"{60 * hours:.0f} min"
