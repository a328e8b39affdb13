"""Figures of published training runs, and of the power and energy of GPUs."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from course.charts import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    bars,
    describe,
    label,
    legend,
    lines,
    mark,
)
from course.lab import digits
from labs.scale.counters import Energy, power_errors
from labs.start_here.nodes import format_minutes

DEVICE_COLOURS = {  # by generation; others are PURPLE
    "NVIDIA M40": GREY,
    "Tesla P100": SKY,
    "Tesla P40": GREEN,
    "Tesla V100": BLUE,
    "CPUs": ORANGE,
}


def plot_training_times(table: pd.DataFrame) -> Picture:
    """Draw time, device hours and speed of published training runs.

    Args:
        table: from `lab.training_times()`.
    """
    picture = Picture(10.5, 1.3 + 0.36 * len(table))
    time, cost, speed = picture.panels(1, 3, sharey=True, width_ratios=(5, 4, 4))
    names = [f"{row.team}, {row.date}\n{row.devices:,} {row.device}" for row in table.itertuples()]
    colours = [DEVICE_COLOURS.get(device, PURPLE) for device in table["device"]]
    minutes, rates = table["minutes"], table["images_per_s_per_device"]
    bars(time, names, minutes, words=list(map(format_minutes, minutes)), colours=colours)
    ends = {"xscale": "log", "xlim": (0.5, minutes.max() * 12)}
    label(time, "time of the training (log scale)", size=10, **ends)
    time.set_xticks([1, 60, 24 * 60, 14 * 24 * 60], ["1 min", "1 h", "1 day", "14 days"])
    time.minorticks_off()
    bars(cost, names, table["device_hours"], colours=colours, room=1.25)
    label(cost, "device hours", size=10)
    words = [digits(rate) for rate in rates]
    bars(speed, names, rates, words=words, missing="?", colours=colours, room=1.25)
    label(speed, "images/s of one device\n(?: not published)", size=10)
    return picture


def plot_power(table: pd.DataFrame) -> Picture:
    """Draw the watts of GPUs and their performance per kilowatt.

    Args:
        table: from `lab.power()`.
    """
    picture = Picture(9, 1.2 + 0.42 * len(table))
    watts, gain = picture.panels(1, 2, sharey=True, width_ratios=(3, 2))
    names, values = list(table["device"]), table["performance_per_kw"]
    series = {"at most": table["max_w"], "idle, about": table["idle_w"]}
    bars(watts, names, series, unit=" W", colours=(ORANGE, DARK))
    label(watts, "watts of one GPU", size=10)
    words = [f"{value:.1f}" for value in values]
    bars(gain, names, values, words=words, missing="?", colours=GREEN)
    label(gain, "performance per kilowatt (?: not published)", size=10)
    # On two lines, because one is wider than the panel.
    gain.set_xlabel("performance ÷ kilowatts\n(performance of an A100 SXM: 1)", fontsize=9)
    legend(picture)
    return picture


def plot_energy(one: pd.DataFrame, several: pd.DataFrame) -> Picture:
    """Draw the energy of full trainings as areas: hours wide, and the watts of all GPUs high.

    Args:
        one: from `costs_on_one_gpu`.
        several: from `costs_on_several_gpus`.
    """
    picture = Picture(10, 3.4)
    left, right = picture.panels(1, 2, width_ratios=(3, 2))
    rungs = one[one["rung"].isin(["device", "amp", "compile"])]
    _areas(left, rungs["rung"], rungs)
    label(left, "a faster script: a smaller area", size=10, xlabel="hours", ylabel="watts")
    linked = several[several["network"] != "sockets"]
    _areas(right, [f"{count} GPU{'s' * (count > 1)}" for count in linked["gpus"]], linked)
    label(right, "more GPUs: no smaller area", size=10, xlabel="hours", ylabel="watts of all GPUs")
    return picture


def _areas(axes: Axes, names: list[str], table: pd.DataFrame) -> None:
    """Draw a rectangle per row, the widest at the back, with its kWh at its upper right corner."""
    watts = table["watts"] * table["gpus"]
    for name, hours, height, kwh, colour in zip(
        names, table["hours"], watts, table["kwh"], (GREY, SKY, BLUE, GREEN)
    ):
        axes.bar(0, height, hours, align="edge", color=colour, alpha=0.75, edgecolor=DARK)
        mark(axes, hours, height * 0.985, f"{name}:\n{kwh:.1f} kWh", size=8)
    words = zip(names, table["hours"], watts, table["kwh"])
    describe(axes, "", [f"{n}: {h:.1f} h × {w:,.0f} W = {kwh:.1f} kWh" for n, h, w, kwh in words])
    axes.set(xlim=(0, 1.3 * table["hours"].max()), ylim=(0, 1.15 * watts.max()))


def plot_energy_errors(function: Energy) -> Picture:
    """Draw how wrong a measured energy can be, by the length of the measurement."""
    table = power_errors(function)
    picture = Picture(8, 3.2)
    axes = picture.panel()
    curves = {
        method: (table["seconds"], 100 * table[method])
        for method in ("between the ends", "between changes")
    }
    lines(axes, curves, colours=(ORANGE, BLUE), marker="o")
    label(axes, "a simulated counter", xlabel="seconds of measuring", ylabel="largest error, %")
    axes.set(xscale="log", yscale="symlog", ylim=(-0.5, 200))
    axes.set_yticks([0, 1, 10, 100], ["0", "1", "10", "100"])
    axes.set_xticks(table["seconds"], [f"{value:g}" for value in table["seconds"]])
    axes.minorticks_off()
    legend(picture)
    return picture
