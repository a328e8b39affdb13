"""Plot a board: accuracy over time, and over joules."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.text import Text
from matplotlib.ticker import PercentFormatter

from course.charts import COLOURS, GREY, Picture, label, legend, limit, lines
from course.data import default_set
from course.lab import digits
from race.board import in_order
from race.entries import Entry, Trial, ranked

MOST_CURVES = 24  # in a picture: more leave no room beside their names
CHANCE = 1 / len(default_set.PHOTOGRAPHS)  # accuracy before training
# For each measure: title, axis, words in the legend.
MEASURES = {
    "seconds": ("Accuracy over time", "seconds since the script began", "after {} s"),
    "joules": ("Accuracy over joules", "joules of the GPU", "with {} J"),
}


def plot_accuracies(entries: Sequence[Entry], target: float) -> dict[str, Picture]:
    """Plot each entry's accuracy over seconds, and over joules if known; not those that failed."""
    # An entry has the same colour in both.
    colours = {entry.id: COLOURS[at % len(COLOURS)] for at, entry in enumerate(in_order(entries))}
    pictures = {}
    for over in MEASURES:
        missed = [
            entry
            for entry in entries
            if not entry.counts
            and not entry.failure
            and None not in (entry.top1, getattr(entry, over))
        ]
        if plotted := ranked(entries, over) + missed:
            pictures[over] = _plot(plotted, target, over, colours)
    return pictures


def _plot(
    entries: Sequence[Entry], target: float, over: str, colours: Mapping[str, str]
) -> Picture:
    title, xlabel, words = MEASURES[over]
    if len(entries) > MOST_CURVES:
        title = f"{title} of {MOST_CURVES} entries (not shown: {len(entries) - MOST_CURVES})"
        entries = entries[:MOST_CURVES]
    machines = {entry.machine for entry in entries}
    if len(machines) == 1 and (machine := machines.pop()):
        title = f"{title}, {machine}"
    picture = Picture(9.6, 4.8)
    axes = picture.panel()
    names = [entry.name for entry in entries]
    for entry in entries:
        colour = colours[entry.id]
        curves = zip(*(_points(trial, over) for trial in entry.trials))  # x and y; NaN parts them
        parts = [[value for part in axis for value in (*part, math.nan)] for axis in curves]
        axes.plot(*parts, color=colour, lw=0.7, alpha=0.5)  # one line per trial would take long
        name = f"{entry.name[:40]}, by {entry.author[:40]}"
        name = entry.id if names.count(entry.name) > 1 else name
        name += f": {entry.top1:.1%} {words.format(digits(getattr(entry, over)))}"
        name, style = (name, "-") if entry.counts else (f"{name}, does not count", ":")
        curve = {name: _points(_median_trial(entry, over), over)}
        lines(axes, curve, colours=colour, styles=style, marker=".")
    limit(axes, target, f"target: {target:.0%}", colour=GREY)
    top = max(target, *(entry.top1 for entry in entries)) + 0.1
    label(axes, title, xlabel=xlabel, ylabel="validation accuracy", xlim=(0, None), ylim=(0, top))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    legend(picture, 2)
    for text in picture.findobj(Text):
        text.set_parse_math(False)  # a name, of a machine too, is not a formula
    return picture


def _points(trial: Trial, over: str) -> tuple[list[float], list[float]]:
    """Return x and accuracy, from the untrained network on; over time from the first step on."""
    column = [*MEASURES].index(over)
    begin = [0.0, trial.ready_s] if over == "seconds" and trial.ready_s is not None else [0.0]
    x = [*begin, *(mark[column] for mark in trial.way)]
    return x, [CHANCE] * len(begin) + [mark[2] for mark in trial.way]


def _median_trial(entry: Entry, over: str) -> Trial:
    """Return the run whose time, or energy, is nearest to the median."""
    median = statistics.median(getattr(trial, over) for trial in entry.trials)
    return min(entry.trials, key=lambda trial: abs(getattr(trial, over) - median))
