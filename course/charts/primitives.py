"""Chart primitives: `bars`, `stack`, `lines`, `scatter_fit`, `strip` and `timeline`.

They draw into a panel of a `Picture`, label its axis, write values where they are readable, and
add them to the figure's alt text. `heading` sets a title for all panels, `label` titles and
axes of one; `mark` adds a note, `limit` a line across the panel, and `legend` a legend below the
figure. `box` and `arrow` are for drawings. A figure that uses Matplotlib directly adds its alt text
with `describe`, or as `Picture(..., alt)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from course.charts.base import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    words_on,
)
from course.text import digits

COLOURS = (BLUE, ACCENT, GREEN, PURPLE, ORANGE, SKY, DARK, GREY)
Values = Sequence[float]
Colours = str | Sequence[str]  # one for all, or a cycle


def label(axes: Axes, title: str = "", *, size: float = 9, **settings: Any) -> None:
    """Set a panel's title, and whatever `Axes.set` takes: xlabel, ylim, xscale ..."""
    axes.set_title(title, loc="left", fontsize=size)
    axes.set(**settings)


def heading(picture: Picture, words: str) -> None:
    """Write words above the figure: the machine, for instance."""
    picture.suptitle(words, x=0.01, ha="left", fontsize=9)


def legend(
    picture: Picture,
    columns: int = 3,
    colours: Mapping[str, str] | None = None,
) -> None:
    """Put a legend below the figure, without duplicates.

    Args:
        colours: colours by name; by default the legend has what the panels have drawn.
    """
    marks = {name: Patch(color=colour) for name, colour in (colours or {}).items()}
    if colours is None:
        for axes in picture.axes:
            for handle, name in zip(*axes.get_legend_handles_labels()):
                marks.setdefault(name, handle)
    if marks:
        place = {"loc": "outside lower center", "ncols": min(columns, len(marks))}
        picture.legend(marks.values(), marks.keys(), frameon=False, fontsize=9, **place)


def mark(
    axes: Axes,
    x: float,
    y: float,
    words: str,
    side: str = "right",
    *,
    colour: str = DARK,
    size: float = 9,
) -> None:
    """Write words next to a point: right, left, above or below."""
    if not words:
        return
    shift, ha, va = {
        "right": ((4, 0), "left", "center_baseline"),
        "left": ((-4, 0), "right", "center_baseline"),
        "above": ((0, 5), "center", "bottom"),
        "below": ((0, -5), "center", "top"),
    }[side]
    look = {"ha": ha, "va": va, "fontsize": size, "color": colour}
    axes.annotate(words, (x, y), shift, textcoords="offset points", **look)


def limit(
    axes: Axes, value: float, words: str = "", *, colour: str = ACCENT, along: str = "y"
) -> None:
    """Draw a dashed line at a value of one axis ("y": a level line); words go into the legend."""
    draw = axes.axhline if along == "y" else axes.axvline
    draw(value, color=colour, lw=1.2, ls="--", label=words or None)


def describe(axes: Axes, title: str, values: Sequence[str]) -> None:
    """Add values to the alt text of a panel; of more than 16, only the first and the last."""
    if not values:
        return
    shown = ", ".join(values) if len(values) <= 16 else f"{values[0]}, …, {values[-1]}"
    axes.figure.values.setdefault(axes, []).append(f"{title}: {shown}" if title else shown)


def bars(
    axes: Axes,
    names: Sequence[str],
    values: Values | Mapping[str, Values],
    *,
    words: Sequence[str] | Mapping[str, Sequence[str]] | None = None,
    unit: str = "",
    low: Values | None = None,
    high: Values | None = None,
    colours: Colours = COLOURS,
    upright: bool = False,
    room: float = 1.2,
    pale: Values | None = None,
    missing: str = "",
) -> None:
    """Draw one bar per name, from top to bottom, or from left to right if upright.

    Args:
        values: one value per name; or several series by name, whose bars are next to each other
            and whose names go into the legend. A missing value (NaN) has no bar.
        words: at the end of the bars, by series if there are several; by default the value with
            three digits, and the unit.
        low, high: the ends of an interval around each value.
        colours: of the bars, or of the series if there are several.
        room: length of the axis, as a multiple of the longest bar, so that words fit in.
        pale: the end of a pale bar behind each bar.
        missing: words for missing values, which override `words`.
    """
    grouped = isinstance(values, Mapping)
    series = values if grouped else {"": values}
    size = (0.76 if grouped else 0.62) / len(series)
    outer = high if pale is None else pale
    limits = [*series.values(), [] if outer is None else outer]
    edge = max(np.nanmax([0, *row]) for row in limits)
    for number, (title, row) in enumerate(series.items()):
        row = np.asarray(row, dtype=float)
        shift = (number - (len(series) - 1) / 2) * size
        places = np.arange(len(names)) + shift
        colour = _cycle(colours, len(series))[number] if grouped else _cycle(colours, len(names))
        spread = None if low is None else np.array([row - low, np.asarray(high) - row])
        look = {"color": colour, "ecolor": DARK, "capsize": 3, "label": title or None}
        draw, error_key = (axes.bar, "yerr") if upright else (axes.barh, "xerr")
        if pale is not None:
            draw(places, np.nan_to_num(pale), size * 0.96, color=colour, alpha=0.4)
        draw(places, row, size * 0.96, **{error_key: spread}, **look)
        defaults = [digits(value) + unit if np.isfinite(value) else missing for value in row]
        texts = (words[title] if grouped else words) if words is not None else defaults
        if missing:
            texts = [text if np.isfinite(value) else missing for text, value in zip(texts, row)]
        ends = np.nan_to_num(row if outer is None else np.fmax(row, np.asarray(outer, dtype=float)))
        for place, end, text in zip(places, ends, texts):
            mark(axes, *((place, end, text, "above") if upright else (end, place, text)))
        known = zip(names, texts, defaults)
        describe(axes, title, [f"{name}: {text or v}" for name, text, v in known if text or v])
    _names(axes, names, upright=upright)
    ends = (0, (edge or 1) * room)
    axes.set(ylim=ends) if upright else axes.set(xlim=ends)


def stack(
    axes: Axes,
    names: Sequence[str],
    parts: Mapping[str, Values],
    *,
    words: Sequence[str] | None = None,
    unit: str = "",
    inside: str = "",
    least: float = 0.05,
    colours: Colours | Mapping[str, str] = COLOURS,
    room: float = 1.2,
) -> None:
    """Draw one stacked bar per name, from top to bottom.

    Args:
        parts: for each part one length per name; the parts' names go into the legend.
        words: at the end of the bars; by default the length with three digits, and the unit.
        inside: format of the words in a part, with {value} and its {share} of the bar; parts
            shorter than `least` of the longest bar have none.
    """
    table = np.array([np.asarray(lengths, dtype=float) for lengths in parts.values()])
    totals = np.nansum(table, axis=0)
    hues = [colours[name] for name in parts] if isinstance(colours, Mapping) else colours
    begin = np.zeros(len(names))
    for title, row, colour in zip(parts, np.nan_to_num(table), _cycle(hues, len(parts))):
        if not row.any():
            continue
        axes.barh(range(len(names)), row, 0.62, left=begin, color=colour, label=title)
        for place, value in enumerate(row):
            if inside and value > least * totals.max():
                text = inside.format(value=value, share=value / totals[place])
                look = {"ha": "center", "va": "center_baseline", "fontsize": 9}
                axes.text(begin[place] + value / 2, place, text, color=words_on(colour), **look)
        describe(axes, title, [f"{n}: {digits(v)}" for n, v in zip(names, row) if v])
        begin += row
    texts = [digits(total) + unit for total in totals] if words is None else words
    for place, (total, text) in enumerate(zip(totals, texts)):
        mark(axes, total, place, text)
    describe(axes, "total", [f"{name}: {text}" for name, text in zip(names, texts) if text])
    _names(axes, names)
    axes.set_xlim(0, (totals.max() if len(totals) else 1) * room or 1)


def lines(
    axes: Axes,
    curves: Mapping[str, tuple[Values, Values]],
    *,
    bands: Mapping[str, tuple[Values, Values]] | None = None,
    errors: Mapping[str, tuple[Values, Values]] | None = None,
    colours: Colours = COLOURS,
    styles: Sequence[str] = ("-",),
    marker: str = "",
) -> None:
    """Draw lines by name: (x, y). Names go into the legend.

    Args:
        bands: low and high ends around a line, as a pale band; errors: the same as bars.
        styles: a cycle of line styles, so that lines that cover each other are visible.
    """
    for number, (name, (x, y)) in enumerate(curves.items()):
        colour = _cycle(colours, len(curves))[number]
        style = styles[number % len(styles)]
        look = {"color": colour, "ls": style, "marker": marker, "ms": 5, "lw": 1.8}
        x, y = np.asarray(x), np.asarray(y, dtype=float)
        if errors and name in errors:
            low, high = (np.asarray(end, dtype=float) for end in errors[name])
            spread = np.nan_to_num(np.clip([y - low, high - y], 0, None))
            axes.errorbar(x, y, spread, capsize=3, elinewidth=1.2, label=name or None, **look)
        else:
            axes.plot(x, y, label=name or None, **look)
        if bands and name in bands:
            axes.fill_between(x, *bands[name], color=colour, alpha=0.2, lw=0)
        if known := [value for value in y if np.isfinite(value)]:
            describe(axes, name, [f"from {digits(known[0])} to {digits(known[-1])}"])


def scatter_fit(
    axes: Axes,
    points: Mapping[str, tuple[Values, Values]],
    fits: Mapping[str, tuple[Values, Values]] | None = None,
    *,
    colours: Colours = COLOURS,
    markers: Sequence[str] = ("o",),
    hollow: bool = False,
    size: float = 6,
    words: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Draw points by name: (x, y); and lines that were fitted to them, in the same colour.

    Args:
        fits: lines by their name in the legend, in the order of the points.
        words: texts next to the points, by name.
    """
    for number, (name, (x, y)) in enumerate(points.items()):
        colour, form = _cycle(colours, len(points))[number], markers[number % len(markers)]
        look = {"mfc": "none", "mew": 1.6} if hollow else {"mec": "white", "mew": 0.4}
        axes.plot(x, y, form, color=colour, ms=size, label=name or None, **look)
        for position, height, text in zip(x, y, (words or {}).get(name, ())):
            mark(axes, position, height, text, "above", colour=colour)
        finite = [(position, value) for position, value in zip(x, y) if np.isfinite(value)]
        describe(axes, name, [f"{_short(position)}: {_short(value)}" for position, value in finite])
    for number, (name, (x, y)) in enumerate((fits or {}).items()):
        axes.plot(x, y, color=_cycle(colours, number + 1)[number], lw=1.2, label=name or None)


def strip(
    axes: Axes,
    rows: Mapping[str, Sequence[tuple[str, str]]],
    *,
    words: Sequence[str] = (),
) -> None:
    """Draw rows of cells from top to bottom; a cell is a colour with words in it.

    Args:
        words: to the right of the rows.
    """
    for place, (name, cells) in enumerate(rows.items()):
        for column, (colour, text) in enumerate(cells):
            axes.add_patch(Rectangle((column, place - 0.36), 0.92, 0.72, color=colour, lw=0))
            look = {"ha": "center", "va": "center", "fontsize": 8, "color": words_on(colour)}
            if text:
                axes.text(column + 0.46, place, text, **look)
        if place < len(words):
            mark(axes, len(cells), place, words[place])
        texts = words[place : place + 1] or [text for _, text in cells if text]
        describe(axes, name, texts)
    _names(axes, list(rows))
    axes.set(xlim=(-0.3, max(map(len, rows.values())) + 0.3), ylim=(len(rows) - 0.5, -0.5))
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)


def timeline(
    axes: Axes,
    lanes: Mapping[str, Iterable[tuple[float, float, str, str]]],
    *,
    heights: Sequence[float] = (0.7,),
) -> None:
    """Draw a timeline with one lane per name, from top to bottom.

    Args:
        lanes: (begin, length, colour, words) of the events in a lane.
        heights: of the lanes' bars; the last one is used for all further lanes.
    """
    for place, (name, spans) in enumerate(lanes.items()):
        height = heights[min(place, len(heights) - 1)]
        spans = list(spans)
        if texts := [text for *_, text in spans if text]:
            describe(axes, name, texts)
        by_colour: dict[str, list[tuple[float, float]]] = {}
        for begin, length, colour, text in spans:
            by_colour.setdefault(colour, []).append((begin, length))
            if text:
                look = {"ha": "center", "va": "center_baseline", "fontsize": 8, "clip_on": True}
                axes.text(begin + length / 2, place, text, color=words_on(colour), **look)
        for colour, intervals in by_colour.items():
            axes.broken_barh(intervals, (place - height / 2, height), color=colour, lw=0)
    _names(axes, list(lanes))
    axes.set_ylim(len(lanes) - 0.4, -0.6)


def box(
    axes: Axes, left: float, low: float, width: float, height: float, colour: str, words: str = ""
) -> None:
    """Draw a box; words are in its middle, or at the top of a white one."""
    edge = GREY if colour == "white" else colour
    axes.add_patch(Rectangle((left, low), width, height, facecolor=colour, edgecolor=edge))
    is_frame = colour == "white"
    y = low + height - 0.2 if is_frame else low + height / 2
    ink = DARK if is_frame else words_on(colour)
    axes.text(left + width / 2, y, words, ha="center", va="center", fontsize=8.5, color=ink)


def arrow(
    axes: Axes, begin: tuple[float, float], end: tuple[float, float], style: str = "<->"
) -> None:
    """Draw an arrow; `style` is matplotlib's arrowstyle."""
    settings = {"arrowstyle": style, "color": DARK, "shrinkA": 0, "shrinkB": 0, "mutation_scale": 8}
    axes.annotate("", end, begin, arrowprops=settings)


def plot_bar_panels(
    panels: Mapping[str, pd.Series],
    machine: str = "",
    *,
    colours: Colours = BLUE,
    sharex: bool = False,
) -> Picture:
    """Plot series with the same index side by side: one panel per series, one bar per name."""
    names = list(next(iter(panels.values())).index)
    picture = Picture(9.5, 0.8 + 0.4 * len(names))
    grid = picture.panels(1, len(panels), sharex=sharex, sharey=True)
    for axes, (title, values) in zip(grid, panels.items()):
        bars(axes, names, values, colours=colours)
        label(axes, title, size=10)
    if sharex:
        grid[0].set_xlim(0, 1.2 * max(values.max() for values in panels.values()))
    heading(picture, machine)
    return picture


def _names(axes: Axes, names: Sequence[str], *, upright: bool = False) -> None:
    """Write names along the axis."""
    if upright:
        axes.set_xticks(range(len(names)), names)
        return
    axes.set_yticks(range(len(names)), names)
    axes.set_ylim(len(names) - 0.5, -0.5)


def _cycle(colours: Colours, count: int) -> list[str]:
    """Return this number of colours."""
    if isinstance(colours, str):
        return [colours] * count
    return [colours[number % len(colours)] for number in range(count)]


def _short(value: float) -> str:
    return digits(value) if abs(value) < 1e6 else f"{value:.3g}"
