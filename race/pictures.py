"""Figures of the board: accuracy over time, and over joules."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

from matplotlib.ticker import PercentFormatter

from course.charts.base import GREY, Picture
from course.charts.primitives import COLOURS, label, legend, limit, lines
from course.data.default_set import PHOTOGRAPHS
from course.text import digits
from race.board import Entry, Trial, in_order

GUESSED = 1 / len(PHOTOGRAPHS)  # of accuracy, before anything is learned
# Of each measure: title, axis, words for what was needed.
OVER = {
    "seconds": ("Accuracy over time", "seconds since the script began", "after {} s"),
    "joules": ("Accuracy over joules", "joules of the GPU", "with {} J"),
}


def ways(entries: Sequence[Entry], target: float) -> dict[str, Picture]:
    """Draw each entry's accuracy until the target: over seconds, and over joules where known."""
    known = {over: [each for each in entries if getattr(each, over) is not None] for over in OVER}
    # Each entry has the same colour in both.
    colours = {each.id: COLOURS[at % len(COLOURS)] for at, each in enumerate(in_order(entries))}
    return {over: _way(some, target, over, colours) for over, some in known.items() if some}


def _way(entries: Sequence[Entry], target: float, over: str, colours: Mapping[str, str]) -> Picture:
    title, across, needed = OVER[over]
    picture = Picture(9.6, 4.8)
    axes = picture.panel()
    names = [each.name for each in entries]
    for entry in entries:
        colour = colours[entry.id]
        for trial in entry.trials:
            axes.plot(*_points(trial, over), color=colour, lw=0.7, alpha=0.5)
        name = entry.id if names.count(entry.name) > 1 else f"{entry.name}, by {entry.by}"
        name += f": {entry.top1:.1%} {needed.format(digits(getattr(entry, over)))}"
        name, style = (name, "-") if entry.counts else (f"{name}, does not count", ":")
        middle = {name: _points(_middle(entry, over), over)}
        lines(axes, middle, colours=colour, styles=style, marker=".")
    limit(axes, target, f"target: {target:.0%}", colour=GREY)
    top = max(target, *(each.top1 for each in entries)) + 0.1
    label(axes, title, xlabel=across, ylabel="validation accuracy", xlim=(0, None), ylim=(0, top))
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    legend(picture, 2)
    for words in picture.legends[0].get_texts():
        words.set_parse_math(False)  # a name is not a formula, whatever is in it
    return picture


def _points(trial: Trial, over: str) -> tuple[list[float], list[float]]:
    """Return x and accuracy, from a network that guesses; over time from the first step on."""
    column = [*OVER].index(over)
    begin = [0.0, trial.ready_s] if over == "seconds" and trial.ready_s is not None else [0.0]
    x = [*begin, *(mark[column] for mark in trial.way)]
    return x, [GUESSED] * len(begin) + [mark[2] for mark in trial.way]


def _middle(entry: Entry, over: str) -> Trial:
    """Return the run whose time, or energy, is nearest to the median."""
    median = statistics.median(getattr(each, over) for each in entry.trials)
    return min(entry.trials, key=lambda each: abs(getattr(each, over) - median))
