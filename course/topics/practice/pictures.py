"""Pictures of a training that is stopped, and of what saving costs it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from course.plots.base import ACCENT, BLUE, DARK, GREEN, GREY, ORANGE, Picture, clean
from course.runs.run import Run
from course.topics.practice.saving import joined, lost, way_of

HUES = {"never": GREY, "torch.save": ORANGE, "async_save": BLUE}


def stopped(run: Run, whole: Run) -> Picture:
    """The losses of a run that was stopped, on those of the same training that was not."""
    table = joined(run, whole)
    picture = Picture(10, 3.2)
    axes = picture.subplots()
    axes.plot(table.index, table["whole"], color=GREY, linewidth=5, label="never stopped")
    for process, hue in ((1, ORANGE), (2, BLUE)):
        part = table[table["process"] == process]
        name = f"stopped, process {process}"
        axes.plot(part.index, part["stopped"], "o-", color=hue, label=name, markersize=5)
    at = run.record.evidence.get("began_at", 0)
    axes.axvline(at - 0.5, color=ACCENT, linestyle=":")
    axes.text(at - 0.45, axes.get_ylim()[1], " goes on", va="top", fontsize=9, color=DARK)
    axes.set(xlabel="step", ylabel="loss")
    clean(axes)
    axes.legend(frameon=False, fontsize=9)
    return picture


def steps(runs: list[Run], machine: str) -> Picture:
    """How long each step took, one row a run: those behind a save stand out."""
    picture = Picture(10, 1.0 + 1.3 * len(runs))
    rows = np.atleast_1d(picture.subplots(len(runs), 1, sharex=True, sharey=True))
    for axes, run in zip(rows, runs):
        table = run.steps[run.steps["step"] >= run.config.warmup_steps]
        way = way_of(run.config)
        axes.bar(table["step"], table["step_s"] * 1e3, color=HUES[way], width=0.8)
        axes.set_title(way, loc="left", fontsize=10)
        axes.set_ylabel("ms")
        clean(axes)
    rows[-1].set_xlabel(f"step; {machine}")
    return picture


def best_distance(save_min: float, nodes: tuple[int, ...], broken_days: float) -> Picture:
    """What is lost by saving too often, and too rarely, on so many nodes."""
    picture = Picture(10, 3.2)
    axes = picture.subplots()
    hours = np.geomspace(0.02, 24, 200)
    for count, hue in zip(nodes, (GREEN, BLUE, ORANGE)):
        shares = pd.Series([lost(save_min, each, count, broken_days) for each in hours])
        best = int(shares.idxmin())
        axes.plot(hours, 100 * shares, color=hue, label=f"{count:,} node{'s' * (count > 1)}")
        axes.plot(hours[best], 100 * shares[best], "o", color=hue)
    axes.set(xscale="log", yscale="log", ylim=(0.1, 100))
    axes.set_xticks([0.05, 0.25, 1, 4, 24], ["3 min", "15 min", "1 h", "4 h", "1 day"])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.set(xlabel="between two checkpoints", ylabel="of the time is lost")
    clean(axes)
    axes.legend(frameon=False, fontsize=9)
    return picture
