"""Pictures of searches: where trials look, which end early, what matters, what it takes, luck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

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
    clean,
)
from course.topics.search.chance import best_by_chance
from course.topics.search.replay import Recorded

COLOURS = (BLUE, ORANGE, GREEN, PURPLE, SKY, DARK)
LINES = ("-", "--", "-.", ":")
STATES = {"complete": BLUE, "pruned": ORANGE}
MARKS = {"complete": "o", "pruned": "x"}
LINE = {"complete": BLUE, "pruned": GREY}  # where a few are to stand out
RANGE = 20  # a field whose values differ by so large a factor is shown in factors


def looked(recorded: Recorded, searches: Mapping[str, pd.DataFrame]) -> Picture:
    """Where each search has looked, over what it would find there; a star is its best trial.

    Args:
        searches: what `points` returns, by name.
    """
    bests = {name: table["best"].iloc[-1] for name, table in searches.items()}
    alt = "Trials over learning rate and batch size; best: " + "; ".join(
        f"{name} {best:.3f}" for name, best in bests.items()
    )
    picture = Picture(10, 3.6, alt)
    panels = picture.subplots(1, len(searches), sharey=True, squeeze=False)[0]
    rates, sizes = recorded.cells.index.to_numpy(), recorded.cells.columns.to_numpy()
    for axes, (name, table) in zip(panels, searches.items()):
        shown = axes.contourf(sizes, rates, recorded.cells, 12, cmap="Blues", vmin=0, vmax=1.1)
        axes.scatter(table["batch_size"], table["lr"], s=24, color=ACCENT, ec="white", zorder=3)
        best = table.loc[table["val_top1"].idxmax()]
        axes.plot(best["batch_size"], best["lr"], "*", color=ORANGE, mec="black", ms=15, zorder=4)
        axes.set(xscale="log", yscale="log", xlabel="images in a batch")
        axes.set_xticks(sizes[::2], [f"{size:,}" for size in sizes[::2]])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_title(f"{name}: {bests[name]:.3f}", loc="left", fontsize=10)
        clean(axes)
    panels[0].set_ylabel("learning rate")
    picture.supxlabel(recorded.machine, fontsize=9, color=DARK)
    picture.colorbar(shown, ax=[*panels], label="accuracy")
    return picture


def curves(table: pd.DataFrame) -> Picture:
    """Accuracy after each epoch of every trial: to the end, or to where it was pruned.

    Args:
        table: what `epochs` returns, of one search or of several, a panel each.
    """
    names = [*dict.fromkeys(table["search"])]
    counts = table.drop_duplicates(["search", "trial"]).groupby("search")["state"].value_counts()
    alt = "; ".join(f"{name}: {count} {state}" for (name, state), count in counts.items())
    picture = Picture(10, 3.5, f"Accuracy over epochs. {alt}")
    panels = picture.subplots(1, len(names), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, names):
        for _, rows in table[table["search"] == name].groupby("trial"):
            pruned = rows["state"].iloc[0] == "pruned"
            colour = STATES.get(rows["state"].iloc[0], GREY)
            axes.plot(rows["epoch"], rows["val_top1"], color=colour, lw=1.2, alpha=0.75)
            end = rows.iloc[-1]
            axes.plot(end["epoch"], end["val_top1"], "x" if pruned else "o", color=colour, ms=6)
        axes.set(xlabel="epoch", xticks=range(1, table["epoch"].max() + 1))
        axes.set_title(name, loc="left", fontsize=10)
        clean(axes)
    panels[0].set_ylabel("accuracy in validation")
    marks = [(state, mark) for state, mark in MARKS.items() if state in {*table["state"]}]
    handles = [Line2D([], [], ls="", marker=m, color=STATES[s], label=s) for s, m in marks]
    _legend(picture, table, handles)
    return picture


def progress(table: pd.DataFrame) -> Picture:
    """The best accuracy so far over what was spent: device seconds, and joules where known.

    Args:
        table: what `progress` returns.
    """
    measured = [what for what in ("device_s", "joules") if table[what].notna().any()]
    ends = table.groupby("search", sort=False)[["best", "device_s"]].last()
    alt = "; ".join(
        f"{name}: {best:.3f} after {took:.0f} s" for name, best, took in ends.itertuples()
    )
    picture = Picture(10, 3.5, f"Best accuracy so far. {alt}")
    panels = picture.subplots(1, len(measured), sharey=True, squeeze=False)[0]
    words = {"device_s": ("device seconds, added up", 1), "joules": ("kilojoules, added up", 1e3)}
    for axes, what in zip(panels, measured):
        label, unit = words[what]
        searches = table.groupby("search", sort=False)
        for (name, rows), colour, line in zip(searches, COLOURS, LINES * 2):
            places = rows[what] / unit
            axes.step(places, rows["best"], where="post", color=colour, ls=line, label=name)
            cut = rows["state"] == "pruned"
            axes.plot(places[cut], rows["best"][cut], "x", color=colour, ms=5)
        axes.set(xlabel=label, xlim=(0, None))
        clean(axes)
    panels[0].set_ylabel("best accuracy so far")
    _legend(picture, table, panels[0].get_legend_handles_labels()[0])
    return picture


def _legend(picture: Picture, table: pd.DataFrame, handles: Sequence[Artist]) -> None:
    """What lines mean, and below that on which machine it was, and when, where it was recorded."""
    picture.legend(
        handles=handles,
        loc="outside lower center",
        ncols=4,
        frameon=False,
        fontsize=9,
        title="; ".join(dict.fromkeys(table["machine"])),
        title_fontsize=9,
    )


def parallel(table: pd.DataFrame, fields: Sequence[str]) -> Picture:
    """A line for each trial, through its value of every field to its accuracy.

    Args:
        table: what `trials` returns, of one search.
        fields: names of columns; numbers.
    """
    best = table.loc[table["val_top1"].idxmax()]
    alt = "Trials as lines; the best: " + ", ".join(f"{name} {best[name]:.3g}" for name in fields)
    picture = Picture(10, 3.8, alt)
    axes = picture.add_subplot()
    names = [*fields, "val_top1"]
    heights = np.column_stack([_scaled(axes, at, table[name]) for at, name in enumerate(names)])
    order = table["val_top1"].rank(method="first").astype(int) - 1
    for place in np.argsort(order.to_numpy()):
        row, top = table.iloc[place], order.iloc[place] >= len(table) - 3
        colour = ACCENT if top else LINE.get(row["state"], GREY)
        width, alpha = (2.2, 1.0) if top else (1.1, 0.6)
        axes.plot(range(len(names)), heights[place], color=colour, lw=width, alpha=alpha)
    axes.set_xticks(range(len(names)), [*fields, "accuracy"])
    axes.set(yticks=[], xlim=(-0.1, len(names) - 0.75), ylim=(-0.06, 1.06))
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    shown = {"three best": ACCENT} | {
        each: LINE[each] for each in LINE if each in {*table["state"]}
    }
    _legend(picture, table, [Line2D([], [], color=shown[each], label=each) for each in shown])
    return picture


def _scaled(axes: Axes, at: int, values: pd.Series) -> np.ndarray:
    """Values from 0 to 1, in factors where they differ much; and the axis with its ends."""
    low, high = float(values.min()), float(values.max())
    factors = low > 0 and high / low > RANGE
    change = np.log if factors else np.asarray
    span = float(change(high) - change(low)) or 1.0
    middle = (low * high) ** 0.5 if factors else (low + high) / 2
    axes.axvline(at, color=GREY, lw=0.8, zorder=0)
    for height, value in ((0, low), (0.5, middle), (1, high)):
        axes.text(at + 0.03, height, f"{value:.2g}", fontsize=8, va="center", color=DARK)
    return (change(values.to_numpy(float)) - change(low)) / span


def importance(shares: pd.Series, machine: str = "") -> Picture:
    """A bar for each field: the share of what trials differ in.

    Args:
        shares: what `importance` returns.
        machine: on which trials were made.
    """
    alt = "; ".join(f"{name}: {share:.0%}" for name, share in shares.items())
    picture = Picture(8, 1.1 + 0.42 * len(shares), f"Share of the differences. {alt}")
    axes = picture.add_subplot()
    axes.barh(range(len(shares)), shares, color=BLUE, height=0.62)
    for place, share in enumerate(shares):
        axes.text(share, place, f" {share:.0%}", va="center", fontsize=9, color=DARK)
    axes.set_yticks(range(len(shares)), [*shares.index])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1.1), xlabel="share of the differences between trials", xticks=[])
    axes.set_title(machine, loc="left", fontsize=9)
    clean(axes)
    return picture


def chance(values: Sequence[float], machine: str = "") -> Picture:
    """Equal trainings beside each other, and how the best of them grows with their number."""
    table, mean = best_by_chance(values), float(np.mean(values))
    alt = (
        f"{len(values)} trainings that differ in their seed: mean {mean:.3f}, best "
        f"{max(values):.3f}; best of 4 {table['best'].iloc[min(3, len(values) - 1)]:.3f} on average"
    )
    picture = Picture(10, 3.3, alt)
    left, right = picture.subplots(1, 2, sharey=True)
    left.plot(range(len(values)), values, "o", color=BLUE, label="a seed")
    left.axhline(mean, color=DARK, lw=1.2, label="mean")
    left.plot(int(np.argmax(values)), max(values), "*", color=ORANGE, mec="black", ms=15)
    left.set(xlabel="seed", ylabel="accuracy in validation")
    left.set_title(machine, loc="left", fontsize=9)
    right.plot(table["trials"], table["best"], "o-", color=ACCENT, ms=4, label="best, on average")
    right.axhline(mean, color=DARK, lw=1.2)
    right.set(xlabel="equal trainings to choose from")
    for axes in (left, right):
        clean(axes)
    handles = [each for axes in (left, right) for each in axes.get_legend_handles_labels()[0]]
    picture.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False, fontsize=9)
    return picture


def tested(table: pd.DataFrame) -> Picture:
    """Each training's accuracy in validation, and on images that it had not looked at.

    Args:
        table: what `tested` returns, of equal trainings.
    """
    best = table.loc[table["val_top1"].idxmax()]
    means = [table["val_top1"].mean(), table["test_top1"].mean()]
    alt = (
        f"The best of {len(table)} in validation, {best['val_top1']:.3f}, has "
        f"{best['test_top1']:.3f} on new images; the mean of all there is {means[1]:.3f}"
    )
    picture = Picture(7, 3.6, alt)
    axes = picture.add_subplot()
    for _, row in table.iterrows():
        chosen = row["trial"] == best["trial"]
        colour, width = (ACCENT, 2.4) if chosen else (GREY, 1.0)
        ends = [row["val_top1"], row["test_top1"]]
        axes.plot([0, 1], ends, "o-", color=colour, lw=width, ms=4, zorder=3 if chosen else 2)
    axes.plot([0, 1], means, color=DARK, lw=2, ls="--", label="mean of all")
    axes.plot([], [], "o-", color=ACCENT, label="chosen for its validation")
    axes.set_xticks([0, 1], ["in validation", "on images not looked at"])
    axes.set(ylabel="accuracy", xlim=(-0.25, 1.25))
    axes.legend(frameon=False, fontsize=9)
    picture.supxlabel("; ".join(dict.fromkeys(table["machine"])), fontsize=9, color=DARK)
    clean(axes)
    return picture
