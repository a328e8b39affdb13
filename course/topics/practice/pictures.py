"""Pictures of a training that is stopped, and of what saving costs it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from course.charts.base import ACCENT, BLUE, DARK, GREEN, GREY, ORANGE, Picture, clean
from course.runs.run import Run
from course.text import digits
from course.topics.practice.saving import NEVER, joined, lost, steps_of, way_of

HUES = {"never": GREY, "torch.save": ORANGE, "async_save": BLUE}


def stopped(run: Run, whole: Run) -> Picture:
    """The losses of a run that was stopped, on those of the same training that was not."""
    table = joined(run, whole)
    at = run.record.evidence.get("began_at", 0)
    same = f"{table['same'].sum()} of {len(table)} steps have the same loss to the bit"
    picture = Picture(
        10, 3.2, f"a stopped training goes on at step {at}, and {same} as a whole one"
    )
    axes = picture.subplots()
    axes.plot(table.index, table["whole"], color=GREY, linewidth=5, label="never stopped")
    for process, hue in ((1, ORANGE), (2, BLUE)):
        part = table[table["process"] == process]
        name = f"stopped, process {process}"
        axes.plot(part.index, part["stopped"], "o-", color=hue, label=name, markersize=5)
    axes.axvline(at - 0.5, color=ACCENT, linestyle=":")
    axes.text(at - 0.45, axes.get_ylim()[1], " goes on", va="top", fontsize=9, color=DARK)
    axes.set(xlabel="step", ylabel="loss")
    clean(axes)
    axes.legend(frameon=False, fontsize=9)
    return picture


def steps(runs: list[Run], machine: str) -> Picture:
    """How long each step took, one row a run: those behind a save stand out."""
    told = "; ".join(_told(run) for run in runs)
    picture = Picture(10, 1.0 + 1.3 * len(runs), f"ms of each step, {machine}. {told}")
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


def _told(run: Run) -> str:
    """The steps of a run, in words."""
    row = steps_of(run)
    usual = f"{row['saved']}: {digits(row['step_ms'])} ms"
    if row["saved"] == NEVER:
        return usual
    return f"{usual}, behind a save (every {row['every']} steps) {digits(row['behind_ms'])} ms"


def best_distance(save_min: float, nodes: tuple[int, ...], broken_days: float) -> Picture:
    """What is lost by saving too often, and too rarely, on so many nodes."""
    hours, found = np.geomspace(0.02, 24, 200), {}
    for count in nodes:
        shares = pd.Series([lost(save_min, each, count, broken_days) for each in hours])
        found[count] = shares, int(shares.idxmin())
    told = [
        f"{_named(count)} every {_apart(hours[best])}, {digits(100 * shares[best])} % lost"
        for count, (shares, best) in found.items()
    ]
    picture = Picture(10, 3.2, f"the best distance between two checkpoints: {'; '.join(told)}")
    axes = picture.subplots()
    for (count, (shares, best)), hue in zip(found.items(), (GREEN, BLUE, ORANGE)):
        axes.plot(hours, 100 * shares, color=hue, label=_named(count))
        axes.plot(hours[best], 100 * shares[best], "o", color=hue)
    axes.set(xscale="log", yscale="log", ylim=(0.1, 100))
    axes.set_xticks([0.05, 0.25, 1, 4, 24], ["3 min", "15 min", "1 h", "4 h", "1 day"])
    axes.set_yticks([0.1, 1, 10, 100], ["0.1 %", "1 %", "10 %", "100 %"])
    axes.set(xlabel="between two checkpoints", ylabel="of the time is lost")
    clean(axes)
    axes.legend(frameon=False, fontsize=9)
    return picture


def _named(nodes: int) -> str:
    return f"{nodes:,} node{'s' * (nodes > 1)}"


def _apart(hours: float) -> str:
    return f"{digits(hours)} h" if hours >= 1 else f"{60 * hours:.0f} min"
