"""Pictures of a node, of a cluster, and of published facts: times of trainings, watts of GPUs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from course.charts.base import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    clean,
    words_on,
)
from course.text import digits
from course.topics.supercomputer.drawing import LINE, arrow, box, canvas, gauge, say, size, tile
from course.topics.supercomputer.nodes import Cluster, Disk, Machine, Node, clock

# By generation of the device, so that like stands beside like.
DEVICE_COLOURS = {
    "NVIDIA M40": GREY,
    "Tesla P100": SKY,
    "Tesla P40": GREEN,
    "Tesla V100": BLUE,
    "CPUs": ORANGE,
}
USE_COLOURS = {"free": GREEN, "partly used": ORANGE, "full": BLUE, "not available": LINE}
LARGE = 10  # so many nodes of a kind are drawn one by one, with their names and GPUs
SQUARE = 0.19  # inches: the side of a node where there are more
WIDE, ROWS = 9.65, 6 * SQUARE  # inches: the room for the squares of one kind of node, at most


def node(machine: Machine) -> Picture:
    """The node that one is on: processors, memory, GPUs, and the disks that it writes to.

    Args:
        machine: what `nodes.machine` returns.
    """
    picture, axes = canvas(10, 4.9)
    place = f", inside Slurm job {machine.job_id}" if machine.job_id else ""
    box(axes, 0.05, 1.4, 9.9, 3.45, f"{machine.host}: the node that you are on{place}")
    _processors(axes, machine)
    used = machine.memory_gib - machine.memory_free_gib
    box(axes, 4.95, 1.55, 1.3, 2.9, "memory")
    gauge(axes, 5.3, 2.2, 0.6, 1.85, used / machine.memory_gib)
    say(axes, 5.6, 1.88, f"{size(machine.memory_gib)}\n{size(machine.memory_free_gib)} free")
    _accelerators(axes, machine)
    _storage(axes, machine.disks, 0.1)
    return picture


def cluster(found: Cluster, machine: Machine) -> Picture:
    """The cluster around it: the scheduler, the nodes by kind, the network, the storage.

    Args:
        found: what `nodes.cluster` returns; each tile or square is one node.
        machine: the node that one is on.
    """
    kinds = _kinds(found.nodes)
    heights = [_height(len(nodes)) for _, nodes in kinds]
    total = 3.35 + sum(heights) + 0.12 * len(heights)
    picture, axes = canvas(10, total)
    top = total - 1.35
    where = (
        f"a compute node, in job {machine.job_id}"
        if machine.job_id
        else "in no job, as on a login node"
    )
    box(axes, 0.05, top + 0.3, 4.3, 1.0, "you are here")
    say(axes, 2.2, top + 0.66, f"{machine.host}: {where}")
    arrow(axes, (4.35, top + 0.72), (5.15, top + 0.72), "sbatch")
    box(axes, 5.15, top + 0.3, 4.8, 1.0, "the scheduler, Slurm")
    say(axes, 7.55, top + 0.66, f"everybody's jobs: {found.waiting} wait, {found.running} run")
    arrow(axes, (7.55, top + 0.32), (7.55, top - 0.02), "")
    for (partitions, nodes), tall in zip(kinds, heights):
        _kind(axes, partitions, nodes, top - tall, tall)
        top -= tall + 0.12
    axes.plot([0.05, 9.95], [top - 0.08] * 2, color=PURPLE, lw=4, solid_capstyle="round")
    say(axes, 5, top - 0.26, "network", colour=PURPLE)
    _storage(axes, machine.disks, 0.4)
    _uses(axes, found.nodes, total)
    return picture


def _uses(axes: Axes, nodes: Sequence[Node], total: float) -> None:
    """The legend of the nodes' colours, at the foot of a picture that is `total` inches high."""
    counts = Counter(_use(node) for node in nodes)
    marks = [Patch(color=USE_COLOURS[use], label=f"{use}: {counts[use]}") for use in USE_COLOURS]
    say(axes, 0.5, 0.19, f"{len(nodes)} nodes:")
    axes.legend(
        handles=marks,
        ncols=4,
        frameon=False,
        fontsize=9,
        borderpad=0,
        loc="lower left",
        bbox_to_anchor=(0.1, 0.08 / total),
    )


def supercomputer() -> Picture:
    """A sketch, not a measurement: the parts of a supercomputer, and what goes where."""
    picture, axes = canvas(10, 4.6)
    for left, wide, title, words in (
        (0.05, 1.5, "you", "a browser\nor ssh"),
        (2.2, 2.05, "login nodes", "JupyterHub, editors,\nlaunch(…), the internet;\nshared by all"),
        (4.9, 1.35, "scheduler", "Slurm: the queue\nof everybody's\njobs"),
    ):
        box(axes, left, 2.5, wide, 1.5, title)
        say(axes, left + wide / 2, 3.1, words)
    box(axes, 6.9, 2.05, 3.05, 2.5, "compute nodes, in partitions")
    for row, (name, gpus) in enumerate((("CPUs", 0), ("4 GPUs a node", 4), ("8 GPUs a node", 8))):
        low = 3.6 - 0.72 * row
        for column in range(3):
            tile(axes, 7.02 + 0.62 * column, low, 0.56, 0.56, [GREEN] * gpus)
        say(axes, 9.42, low + 0.28, name)
    for begin, end, words in ((1.55, 2.2, ""), (4.25, 4.9, "sbatch"), (6.25, 6.9, "starts")):
        arrow(axes, (begin, 3.25), (end, 3.25), words)
    axes.plot([2.2, 9.95], [1.62, 1.62], color=PURPLE, lw=4, solid_capstyle="round")
    say(axes, 4.6, 1.82, "fast network: all nodes see the same files", colour=PURPLE)
    spaces = {
        "HOME": "settings;\nsmall, backed up",
        "WORK": "code, runs, logs;\nlarge",
        "SCRATCH": "what a job reads and\nwrites fast; cleaned up",
        "STORE": "archives;\nslow, lasting",
        "DSDIR": "public data sets;\nread only",
    }
    for number, (name, use) in enumerate(spaces.items()):
        left = 2.2 + 1.57 * number
        box(axes, left, 0.1, 1.47, 1.2, name)
        say(axes, left + 0.735, 0.58, use, points=7.5)
    say(axes, 1.1, 0.7, "storage spaces\n(Jean Zay's names)")
    return picture


def _processors(axes: Axes, machine: Machine) -> None:
    box(axes, 0.2, 1.55, 4.6, 2.9, "processor" + "s" * (machine.sockets > 1))
    each, threads = machine.cores // machine.sockets, machine.threads // machine.cores
    wide = 4.3 / machine.sockets
    columns, side = _grid(each, wide - 0.1, 1.75)
    used_rows = math.ceil(each / columns)
    for core in range(machine.cores):
        socket, place = divmod(core, each)
        row, column = divmod(place, columns)
        left = 0.35 + (socket + 0.5) * wide + (column - columns / 2) * side
        low = 3.18 + (used_rows / 2 - row - 1) * side
        # Slurm and containers may give a process fewer cores than there are.
        colour = BLUE if core < machine.usable // threads else LINE
        axes.add_patch(Rectangle((left, low), side * 0.84, side * 0.84, color=colour, lw=0))
    words = f"{machine.sockets} × {each} cores" if machine.sockets > 1 else f"{each} cores"
    words += f", {threads} threads each" if threads > 1 else ""
    if machine.usable < machine.threads:
        words += f"; you may use {machine.usable} of {machine.threads} threads"
    say(axes, 2.5, 1.88, f"{machine.cpu}\n{words}")


def _grid(count: int, wide: float, tall: float) -> tuple[int, float]:
    """Columns, and the side of a square, so that squares are large and the last row is full."""

    def fit(columns: int) -> tuple[float, int, int]:
        side = min(wide / columns, tall / math.ceil(count / columns), 0.75)
        return round(side, 3), -(-count % columns), columns

    columns = max(range(1, count + 1), key=fit)
    return columns, fit(columns)[0]


def _accelerators(axes: Axes, machine: Machine) -> None:
    count = len(machine.gpus)
    box(axes, 6.4, 1.55, 3.4, 2.9, "GPU" + "s" * (count != 1), dashed=not count)
    if not count:
        say(axes, 8.1, 3.0, "none on this node")
        return
    names = [f"{n} × {name}" for name, n in Counter(gpu.name for gpu in machine.gpus).items()]
    say(axes, 8.1, 1.88, "\n".join(names[:2]))
    columns = 1 if count == 1 else 2 if count <= 8 else 4
    rows = math.ceil(count / columns)
    wide, tall = 3.2 / columns, min(0.9, 1.95 / rows)
    for number, gpu in enumerate(machine.gpus):
        row, column = divmod(number, columns)
        left, low = 6.5 + column * wide + 0.04, 3.13 + (rows / 2 - row - 1) * tall
        axes.add_patch(Rectangle((left, low + 0.04), wide - 0.08, tall - 0.08, color=GREEN, lw=0))
        memory = f": {size(gpu.memory_gib)}" if gpu.memory_gib else ": the node's memory"
        words = f"GPU {number}{memory}" if columns < 4 else f"{number}"
        say(axes, left + wide / 2 - 0.04, low + tall / 2, words, colour=words_on(GREEN))


def _storage(axes: Axes, disks: Sequence[Disk], low: float) -> None:
    wide = 9.9 / max(len(disks), 1)
    for number, disk in enumerate(disks):
        left = 0.05 + number * wide
        last = number + 1 == len(disks)
        box(axes, left, low, wide - (0 if last else 0.1), 1.1, f"disk for {', '.join(disk.uses)}")
        gauge(axes, left + 0.15, low + 0.5, wide - 0.4, 0.18, 1 - disk.free_gib / disk.total_gib)
        seen = "on the network, where other nodes see it" if disk.shared else "this node's own"
        free = f"{size(disk.free_gib)} of {size(disk.total_gib)} free"
        between = "; " if wide > 4 else "\n"
        words = f"{free}{between}{seen} ({disk.kind})"
        say(axes, left + wide / 2 - 0.05, low + 0.26, words, points=8)


def _kinds(nodes: Sequence[Node]) -> list[tuple[str, list[Node]]]:
    """Nodes of one hardware and the same partitions together, those with most GPUs last."""

    def key(node: Node) -> tuple:
        return node.gpus, node.cores, node.memory_gib, sorted(node.partitions)

    return [(", ".join(of[3]), [*each]) for of, each in groupby(sorted(nodes, key=key), key)]


def _squares(count: int) -> tuple[int, float]:
    side = min(SQUARE, math.sqrt(WIDE * ROWS / count))
    return int(WIDE / side), side


def _height(count: int) -> float:
    """Inches that the box of so many nodes of a kind takes."""
    if count <= LARGE:
        return 0.45 + 0.88 * math.ceil(count / 5)
    columns, side = _squares(count)
    return 0.47 + side * math.ceil(count / columns)


def _kind(axes: Axes, partitions: str, nodes: list[Node], low: float, tall: float) -> None:
    first, count = nodes[0], len(nodes)
    gpus = f", {first.gpus} GPU" + "s" * (first.gpus > 1) if first.gpus else ""
    box(
        axes,
        0.05,
        low,
        9.9,
        tall,
        f"{partitions}: {count} node{'s' * (count > 1)} of "
        f"{first.cores} cores, {size(first.memory_gib)}{gpus}",
    )
    if count > LARGE:
        columns, side = _squares(count)
        order = [*USE_COLOURS]
        for number, use in enumerate(sorted(map(_use, nodes), key=order.index)):
            row, column = divmod(number, columns)
            spot = (0.17 + column * side, low + tall - 0.36 - (row + 1) * side)
            shape = Rectangle(spot, side * 0.85, side * 0.85, color=USE_COLOURS[use], lw=0)
            axes.add_patch(shape)
        return
    for number, each in enumerate(sorted(nodes, key=lambda node: node.name)):
        row, column = divmod(number, 5)
        left, bottom = 0.17 + 1.94 * column, low + tall - 0.36 - (row + 1) * 0.87
        colours = [BLUE] * each.gpus_used + [GREEN] * (each.gpus - each.gpus_used)
        colours = colours if each.is_up else [LINE] * each.gpus
        tile(axes, left, bottom, 1.86, 0.8, colours, USE_COLOURS[_use(each)])
        words = f"{each.name}: {each.state}\n{each.cores_used} of {each.cores} cores used"
        say(axes, left + 0.93, bottom + 0.53, words, points=8)


def _use(node: Node) -> str:
    if not node.is_up:
        return "not available"
    if node.is_free:
        return "free"
    full = node.cores_used >= node.cores or (node.gpus and not node.free_gpus)
    return "full" if full else "partly used"


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
    time.set_title("time of the training (log scale)", loc="left", fontsize=10)
    _bars(cost, table["device_hours"], [f"{each:,.0f}" for each in table["device_hours"]], colours)
    cost.set_title("device hours", loc="left", fontsize=10)
    rates = table["images_per_s_each"]
    _bars(speed, rates.fillna(0), ["?" if pd.isna(r) else digits(r) for r in rates], colours)
    speed.set_title("images per second and device\n(?: not published)", loc="left", fontsize=10)
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
    # In two lines: in one it is wider than its panel, and is cut.
    gain.set_xlabel("performance ÷ kilowatts\n(performance of an A100 SXM: 1)", fontsize=9)
    gain.set_title("performance per kilowatt (?: not published)", loc="left", fontsize=10)
    draw.invert_yaxis()
    clean(draw)
    return picture


def _bars(axes: Axes, values: pd.Series, words: list[str], colours: list[str]) -> None:
    """Bars with what they stand for behind their end; "?" where it was not told."""
    axes.barh(range(len(values)), values, color=colours, height=0.66)
    for place, (value, word) in enumerate(zip(values, words)):
        axes.text(value, place, f" {word}", va="center", fontsize=9)
    clean(axes)
