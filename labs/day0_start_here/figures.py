"""Drawings of a node and of a cluster, and figures of published trainings and GPUs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from itertools import groupby

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.charts.base import BLUE, DARK, GREEN, GREY, ORANGE, PURPLE, SKY, Picture
from course.charts.primitives import bars, describe, label, legend
from course.text import digits
from labs.day0_start_here.drawing import LINE, arrow, box, canvas, gauge, say, size, squares
from labs.day0_start_here.nodes import Cluster, Disk, Machine, Node, clock

# By generation of the device.
DEVICE_COLOURS = {
    "NVIDIA M40": GREY,
    "Tesla P100": SKY,
    "Tesla P40": GREEN,
    "Tesla V100": BLUE,
    "CPUs": ORANGE,
}
USE_COLOURS = {"free": GREEN, "partly used": ORANGE, "full": BLUE, "not available": LINE}
WIDE, HIGH = 9.65, 1.14  # inches: the room for the nodes of one kind, at most
NAMED, SMALL = 1.1, 0.19  # inches: a node with words in it, and one of more than LARGE
LARGE = 10  # nodes of a kind


def plot_node(machine: Machine) -> Picture:
    """Draw the node that this process is on: processors, memory, GPUs, and its disks."""
    picture, axes = canvas(10, 4.9)
    job = f", inside Slurm job {machine.job_id}" if machine.job_id else ""
    box(axes, 0.05, 1.4, 9.9, 3.45, f"{machine.host}: the node that you are on{job}")
    _processors(axes, machine)
    used = machine.memory_gib - machine.memory_free_gib
    box(axes, 4.95, 1.55, 1.3, 2.9, "memory")
    gauge(axes, 5.3, 2.2, 0.6, 1.85, used / machine.memory_gib)
    say(axes, 5.6, 1.88, f"{size(machine.memory_gib)}\n{size(machine.memory_free_gib)} free")
    _gpus(axes, machine)
    _disks(axes, machine.disks, 0.1)
    return picture


def _processors(axes: Axes, machine: Machine) -> None:
    box(axes, 0.2, 1.55, 4.6, 2.9, "processor" + "s" * (machine.sockets > 1))
    each, threads = machine.cores // machine.sockets, machine.threads // machine.cores
    # Slurm and containers may give a process fewer cores than there are.
    usable = machine.usable // threads
    colours = [BLUE if core < usable else LINE for core in range(machine.cores)]
    wide = 4.3 / machine.sockets
    for socket in range(machine.sockets):
        cores = colours[socket * each : (socket + 1) * each]
        squares(axes, 0.4 + socket * wide, 2.3, wide - 0.1, 1.75, cores)
    words = f"{machine.sockets} × {each} cores" if machine.sockets > 1 else f"{each} cores"
    words += f", {threads} threads each" if threads > 1 else ""
    if machine.usable < machine.threads:
        words += f"; you may use {machine.usable} of {machine.threads} threads"
    say(axes, 2.5, 1.88, f"{machine.cpu}\n{words}")


def _gpus(axes: Axes, machine: Machine) -> None:
    memory = [
        size(gpu.memory_gib) if gpu.memory_gib else "the node's\nmemory" for gpu in machine.gpus
    ]
    words = [f"GPU {number}\n{each}" for number, each in enumerate(memory)]
    box(axes, 6.4, 1.55, 3.4, 2.9, "GPU" + "s" * (len(words) != 1))
    squares(axes, 6.5, 2.15, 3.2, 1.95, [GREEN] * len(words), words, most=0.9)
    names = [f"{n} × {name}" for name, n in Counter(gpu.name for gpu in machine.gpus).items()]
    say(axes, 8.1, 1.88, "\n".join(names[:2]) or "none on this node")


def _disks(axes: Axes, disks: Sequence[Disk], low: float) -> None:
    wide = 10 / max(len(disks), 1)
    for number, disk in enumerate(disks):
        left = 0.05 + number * wide
        box(axes, left, low, wide - 0.1, 1.1, f"disk for {', '.join(disk.uses)}")
        gauge(axes, left + 0.15, low + 0.5, wide - 0.4, 0.18, 1 - disk.free_gib / disk.total_gib)
        place = "on the network, where other nodes see it" if disk.shared else "this node's own"
        words = f"{size(disk.free_gib)} of {size(disk.total_gib)} free\n{place} ({disk.kind})"
        say(axes, left + wide / 2 - 0.05, low + 0.26, words, points=8)


def plot_cluster(found: Cluster, machine: Machine) -> Picture:
    """Draw the cluster: the scheduler, the nodes by kind, the network, the storage.

    Args:
        found: what `nodes.cluster` returns; each tile or square is one node.
        machine: the node that this process is on.
    """
    kinds = _kinds(found.nodes)
    heights = [_height(len(nodes)) for _, nodes in kinds]
    top = 1.6 + sum(heights) + 0.12 * len(heights)
    picture, axes = canvas(10, top + 1.35, below=0.3)
    job = f"a compute node, in job {machine.job_id}" if machine.job_id else ""
    words = f"{machine.host}: {job or 'in no job, as on a login node'}"
    box(axes, 0.05, top + 0.3, 4.3, 1.0, "you are here", words)
    arrow(axes, (4.35, top + 0.72), (5.15, top + 0.72), "sbatch")
    jobs = f"everybody's jobs: {found.waiting} wait, {found.running} run"
    box(axes, 5.15, top + 0.3, 4.8, 1.0, f"the scheduler, Slurm: {len(found.nodes)} nodes", jobs)
    arrow(axes, (7.55, top + 0.32), (7.55, top - 0.02), "")
    for (partitions, nodes), tall in zip(kinds, heights):
        _kind(axes, partitions, nodes, top - tall, tall)
        top -= tall + 0.12
    axes.plot([0.05, 9.95], [top - 0.08] * 2, color=PURPLE, lw=4, solid_capstyle="round")
    say(axes, 5, top - 0.26, "network", colour=PURPLE)
    _disks(axes, machine.disks, 0.05)
    counts = Counter(map(_use, found.nodes))
    colours = {f"{use}: {counts[use]}": colour for use, colour in USE_COLOURS.items()}
    legend(picture, 4, colours)
    describe(axes, "nodes", list(colours))
    return picture


def _kinds(nodes: Sequence[Node]) -> list[tuple[str, list[Node]]]:
    """Group nodes of the same hardware and partitions, those with most GPUs last."""

    def key(node: Node) -> tuple:
        return node.gpus, node.cores, node.memory_gib, sorted(node.partitions)

    return [(", ".join(of[3]), [*each]) for of, each in groupby(sorted(nodes, key=key), key)]


def _side(count: int) -> float:
    """Return the side, in inches, of so many nodes of a kind."""
    return min(NAMED if count <= LARGE else SMALL, math.sqrt(WIDE * HIGH / count))


def _height(count: int) -> float:
    """Return the inches that the box of so many nodes of a kind takes."""
    side = _side(count)
    return 0.47 + side * math.ceil(count / int(WIDE / side))


def _kind(axes: Axes, partitions: str, nodes: list[Node], low: float, tall: float) -> None:
    first, count = nodes[0], len(nodes)
    hardware = f"{first.cores} cores, {size(first.memory_gib)}"
    gpus = f", {first.gpus} GPU" + "s" * (first.gpus > 1) if first.gpus else ""
    title = f"{partitions}: {count} node{'s' * (count > 1)} of {hardware}{gpus}"
    box(axes, 0.05, low, 9.9, tall, title)
    if count > LARGE:
        nodes = sorted(nodes, key=lambda node: [*USE_COLOURS].index(_use(node)))
    colours = [USE_COLOURS[_use(node)] for node in nodes]
    words = [
        f"{node.name}\n{node.state}\n{node.cores_used}/{node.cores} cores"
        + f"\n{node.gpus_used}/{node.gpus} GPUs" * (node.gpus > 0)
        for node in nodes
    ]
    squares(axes, 0.17, low + 0.11, WIDE, tall - 0.47, colours, words, most=_side(count))


def _use(node: Node) -> str:
    if not node.is_up:
        return "not available"
    if node.is_free:
        return "free"
    full = node.cores_used >= node.cores or (node.gpus and not node.free_gpus)
    return "full" if full else "partly used"


def plot_supercomputer() -> Picture:
    """Draw a sketch, not a measurement: the parts of a supercomputer, and what goes where."""
    picture, axes = canvas(10, 4.6)
    login = "JupyterHub, editors,\nlaunch(…), the internet;\nshared by all"
    box(axes, 0.05, 2.5, 1.5, 1.5, "you", "a browser\nor ssh")
    box(axes, 2.2, 2.5, 2.05, 1.5, "login nodes", login)
    box(axes, 4.9, 2.5, 1.35, 1.5, "scheduler", "Slurm: the queue\nof everybody's\njobs")
    for begin, end, words in ((1.55, 2.2, ""), (4.25, 4.9, "sbatch"), (6.25, 6.9, "starts")):
        arrow(axes, (begin, 3.25), (end, 3.25), words)
    box(axes, 6.9, 2.05, 3.05, 2.5, "compute nodes, in partitions")
    for row, (name, gpus) in enumerate((("CPUs", 0), ("4 GPUs a node", 4), ("8 GPUs a node", 8))):
        low = 3.6 - 0.72 * row
        for column in range(3):
            left = 7.02 + 0.62 * column
            axes.add_patch(Rectangle((left, low), 0.56, 0.56, facecolor="white", edgecolor=GREY))
            squares(axes, left + 0.04, low + 0.06, 0.48, 0.25, [GREEN] * gpus, most=0.17)
        say(axes, 9.42, low + 0.28, name)
    axes.plot([2.2, 9.95], [1.62, 1.62], color=PURPLE, lw=4, solid_capstyle="round")
    say(axes, 4.6, 1.82, "fast network: all nodes see the same files", colour=PURPLE)
    spaces = {
        "HOME": "settings;\nsmall, backed up",
        "WORK": "code, runs, logs;\nlarge",
        "SCRATCH": "what a job reads and\nwrites fast; cleaned up",
        "STORE": "archives;\nslow, lasting",
        "DSDIR": "public data sets;\nread only",
    }
    say(axes, 1.1, 0.7, "storage spaces\n(Jean Zay's names)")
    for number, (name, use) in enumerate(spaces.items()):
        box(axes, 2.2 + 1.57 * number, 0.1, 1.47, 1.2, name, use, points=7.5)
    return picture


def plot_training_times(table: pd.DataFrame) -> Picture:
    """Draw time, device hours and speed of trainings (a table of `history.training_times`)."""
    picture = Picture(10.5, 1.3 + 0.36 * len(table))
    time, cost, speed = picture.panels(1, 3, sharey=True, width_ratios=(5, 4, 4))
    who = [f"{row.who}, {row.date}\n{row.devices:,} {row.device}" for row in table.itertuples()]
    colours = [DEVICE_COLOURS.get(name, PURPLE) for name in table["device"]]
    minutes, rates = table["minutes"], table["images_per_s_each"]
    bars(time, who, minutes, words=list(map(clock, minutes)), colours=colours)
    ends = {"xscale": "log", "xlim": (0.5, minutes.max() * 12)}
    label(time, "time of the training (log scale)", size=10, **ends)
    time.set_xticks([1, 60, 24 * 60, 14 * 24 * 60], ["1 min", "1 h", "1 day", "14 days"])
    time.minorticks_off()
    bars(cost, who, table["device_hours"], colours=colours, room=1.25)
    label(cost, "device hours", size=10)
    words = ["?" if pd.isna(each) else digits(each) for each in rates]
    bars(speed, who, rates, words=words, colours=colours, room=1.25)
    label(speed, "images per second and device\n(?: not published)", size=10)
    return picture


def plot_power(table: pd.DataFrame) -> Picture:
    """Draw the watts of GPUs, and the performance for them (a table of `history.power`)."""
    picture = Picture(9, 1.2 + 0.42 * len(table))
    watts, gain = picture.panels(1, 2, sharey=True, width_ratios=(3, 2))
    names, values = list(table["device"]), table["performance_per_kw"]
    series = {"at most": table["max_w"], "idle, about": table["idle_w"]}
    bars(watts, names, series, unit=" W", colours=(ORANGE, DARK))
    label(watts, "watts of one GPU", size=10)
    words = ["?" if pd.isna(each) else f"{each:.1f}" for each in values]
    bars(gain, names, values, words=words, colours=GREEN)
    label(gain, "performance per kilowatt (?: not published)", size=10)
    # In two lines: in one it is wider than its panel, and is cut.
    gain.set_xlabel("performance ÷ kilowatts\n(performance of an A100 SXM: 1)", fontsize=9)
    legend(picture)
    return picture
