"""Pictures of the board: accuracy over time, and over joules."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence

from matplotlib.ticker import PercentFormatter

from course.charts.base import ACCENT, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, Picture, clean
from course.data.default_set import PHOTOGRAPHS
from course.race.board import Entry, Trial, in_order
from course.text import digits

COLOURS = (ACCENT, BLUE, GREEN, PURPLE, ORANGE, SKY)
GUESSED = 1 / len(PHOTOGRAPHS)  # of accuracy, before anything is learned
NEEDED = {"seconds": "after {} s", "joules": "with {} J"}
AXES = {"seconds": "seconds since the script began", "joules": "joules of the GPU"}


def ways(entries: Sequence[Entry], target: float) -> Iterator[Picture]:
    """Each entry's way to the target: over time, and over joules where they were counted."""
    for place, name in enumerate(AXES):
        known = [each for each in entries if getattr(each, name) is not None]
        if known:
            yield _way(known, target, name, place)


def _way(entries: Sequence[Entry], target: float, name: str, place: int) -> Picture:
    said = "; ".join(
        f"{each.name} reaches {each.top1:.1%} {NEEDED[name].format(digits(getattr(each, name)))}"
        f"{'' if each.counts else ' and does not count'}"
        for each in entries
    )
    picture = Picture(8.6, 4.2, f"Accuracy over {AXES[name]}; the target is {target:.0%}. {said}.")
    axes = picture.add_subplot()
    colours = _colours(entries)
    for entry in entries:
        colour = colours[entry.id]
        for trial in entry.trials:
            axes.plot(*_points(trial, place), color=colour, lw=0.7, alpha=0.5)
        middle = _middle(entry, name)
        twice = sum(each.name == entry.name for each in entries) > 1
        label = entry.id if twice else f"{entry.name}, by {entry.by}"
        label, line = (label, "o-") if entry.counts else (f"{label}: does not count", "o:")
        axes.plot(*_points(middle, place), line, color=colour, ms=3.5, lw=1.8, label=label)
    axes.axhline(target, color=GREY, ls="--", lw=1)
    axes.annotate("target", (0, target), (4, 3), textcoords="offset points", color=GREY)
    axes.set(xlabel=AXES[name], ylabel="validation accuracy")
    best = max(each.top1 for each in entries)
    axes.set_ylim(0, max(target, best) + 0.1)
    axes.set_xlim(left=0)
    axes.yaxis.set_major_formatter(PercentFormatter(1, decimals=0))
    axes.set_title(f"Accuracy over {'time' if name == 'seconds' else 'joules'}", loc="left")
    for label in axes.legend(loc="lower right", frameon=False).get_texts():
        label.set_parse_math(False)  # a name is not a formula, whatever is in it
    clean(axes)
    return picture


def _colours(entries: Sequence[Entry]) -> dict[str, str]:
    """A colour for each entry, by the order of the board: the same over time and over joules."""
    order = enumerate(in_order(entries))
    return {entry.id: COLOURS[number % len(COLOURS)] for number, entry in order}


def _points(trial: Trial, place: int) -> tuple[list[float], list[float]]:
    """Its way, from a network that guesses; over time that begins where the first step does."""
    begin = [0.0, trial.ready_s] if place == 0 and trial.ready_s is not None else [0.0]
    marks = [mark[place] for mark in trial.way]
    return [*begin, *marks], [*([GUESSED] * len(begin)), *(mark[2] for mark in trial.way)]


def _middle(entry: Entry, name: str) -> Trial:
    """The run whose time, or energy, is nearest to the median."""
    median = statistics.median(getattr(each, name) for each in entry.trials)
    return min(entry.trials, key=lambda each: abs(getattr(each, name) - median))
