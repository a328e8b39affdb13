"""Pictures of published facts: how long trainings took, and what GPUs draw."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from course.plots.base import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, SKY, Picture, clean
from course.runs.record import digits
from course.topics.supercomputer.machine import clock

# By generation of the device, so that like stands beside like.
DEVICE_COLOURS = {"NVIDIA M40": GREY, "Tesla P100": SKY, "Tesla P40": GREEN, "Tesla V100": BLUE,
                  "CPUs": ORANGE}  # fmt: skip


def training_times(table: pd.DataFrame) -> Picture:
    """ResNet-50 on ImageNet, training by training: its time, its device-hours, its speed.

    Args:
        table: what `history.training_times` returns.
    """
    picture = Picture(10.5, 1.3 + 0.36 * len(table))
    time, cost, speed = picture.subplots(1, 3, sharey=True, width_ratios=(5, 4, 4))
    who = [f"{row.who}, {row.date}\n{row.devices:,} {row.device}" for row in table.itertuples()]
    colours = [DEVICE_COLOURS.get(name, PURPLE) for name in table["device"]]
    _bars(time, table["minutes"], [clock(each) for each in table["minutes"]], colours)
    time.set_xscale("log")
    time.set_xlim(0.5, table["minutes"].max() * 12)
    time.set_xticks([1, 60, 24 * 60, 14 * 24 * 60], ["1 min", "1 h", "1 day", "14 days"])
    time.minorticks_off()
    time.set_yticks(range(len(table)), who)
    time.set_title("how long one waited (log scale)", loc="left", fontsize=10)
    _bars(cost, table["device_hours"], [f"{each:,.0f}" for each in table["device_hours"]], colours)
    cost.set_title("devices × hours", loc="left", fontsize=10)
    rates = table["images_per_s_each"]
    _bars(speed, rates.fillna(0), ["?" if pd.isna(r) else digits(r) for r in rates], colours)
    speed.set_title("images a second, each (?: not told)", loc="left", fontsize=10)
    for axes in (cost, speed):
        axes.margins(x=0.2)
        axes.set_xlim(left=0)
    time.invert_yaxis()
    return picture


def power(table: pd.DataFrame) -> Picture:
    """What GPUs draw, idle and at most (left), and the performance for it (right).

    Args:
        table: what `history.power` returns.
    """
    picture = Picture(9, 1.2 + 0.36 * len(table))
    draw, gain = picture.subplots(1, 2, sharey=True, width_ratios=(3, 2))
    draw.barh(table["device"], table["max_w"], color=ORANGE, height=0.62, label="at most")
    draw.barh(table["device"], table["idle_w"], color=DARK, height=0.62, label="idle")
    for place, (most, idle) in enumerate(zip(table["max_w"], table["idle_w"])):
        told = f" {most:.0f}" + ("" if pd.isna(idle) else f", idle about {idle:.0f}")
        draw.text(most, place, told, va="center", fontsize=9)
    draw.set_xlim(0, table["max_w"].max() * 1.35)
    draw.set_title("watts of one GPU", loc="left", fontsize=10)
    # Above the bars, of which the first is a short one.
    draw.legend(frameon=False, fontsize=9, loc="upper right")
    values = table["performance_per_kw"]
    words = ["?" if pd.isna(each) else f"{each:.1f}" for each in values]
    _bars(gain, values.fillna(0), words, [GREEN] * len(table))
    gain.margins(x=0.15)
    gain.set_xlabel("performance ÷ kilowatts (performance: an A100 SXM is 1)")
    gain.set_title("work a kilowatt (?: not told)", loc="left", fontsize=10)
    draw.invert_yaxis()
    clean(draw)
    return picture


def _bars(axes: Axes, values: pd.Series, words: list[str], colours: list[str]) -> None:
    """Bars with what they stand for behind their end; "?" where it was not told."""
    axes.barh(range(len(values)), values, color=colours, height=0.66)
    for place, (value, word) in enumerate(zip(values, words)):
        axes.text(value, place, f" {word}", va="center", fontsize=9)
    clean(axes)
