"""Pictures of the fast step: who moves what, and the walls of memory and of power."""

from __future__ import annotations

import numpy as np
import pandas as pd

from course.charts.base import ACCENT, BLUE, DARK, GREY, ORANGE, Picture, clean

COLOURS = {"eager": DARK, "compile": ORANGE, "fast": BLUE}


def plot_moved(table: pd.DataFrame) -> Picture:
    """Tensors that a block reads and writes, part by part (columns part, eager, compile, fast)."""
    totals = ", ".join(f"{way} {table[way].sum()}" for way in COLOURS)
    picture = Picture(10, 5.6, f"narrow tensors moved by a block's training step: {totals}")
    axes = picture.add_subplot()
    places = np.arange(len(table))[::-1]
    for at, (way, colour) in enumerate(COLOURS.items()):
        label = f"{way}: {table[way].sum()}"
        axes.barh(places + 0.27 * (1 - at), table[way], height=0.25, color=colour, label=label)
    axes.set_yticks(places, table["part"])
    border = (table["pass"] == "backward").sum() - 0.5
    axes.axhline(border, color=GREY, lw=0.8, ls=":")
    for name, at in (("forward", border + 0.15), ("backward", border - 0.5)):
        axes.text(35.8, at, name, ha="right", color=DARK)
    axes.set(xlim=(0, 36), ylim=(-0.6, len(table) - 0.4))
    axes.set_xlabel("tensors read and written, in units of a narrow one")
    axes.legend(frameon=False, loc="lower right")
    clean(axes)
    return picture


def plot_walls(
    measured: pd.DataFrame, megabytes: pd.Series, tb_per_s: float, watts: float
) -> Picture:
    """images/s against MB an image: the memory's curve, the power's line, and what was measured."""
    told = ", ".join(f"{way} {measured.loc[way, 'images_per_s']:,.0f}" for way in measured.index)
    picture = Picture(9, 4.6, f"images a second beside the walls of memory and power: {told}")
    axes = picture.add_subplot()
    span = np.linspace(120, 520, 200)
    axes.plot(
        span, 1e6 * tb_per_s / span, color=GREY, label=f"memory, {tb_per_s:.2f} TB/s, blocks alone"
    )
    power = watts / measured.loc["fast", "joules_per_image"]
    label = f"power, {watts:.0f} W at the fast step's joules"
    axes.axhline(power, color=ACCENT, ls="--", label=label)
    for way in measured.index:
        x, y = megabytes[way], measured.loc[way, "images_per_s"]
        axes.plot(x, y, "o", color=COLOURS[way], ms=9)
        axes.annotate(f"{way}, {y:,.0f}", (x, y), (8, -14), textcoords="offset points", color=DARK)
    axes.set(xlabel="MB that the blocks move, an image", ylabel="images/s", ylim=(0, 16000))
    axes.legend(frameon=False)
    clean(axes)
    return picture
