"""Drawings of a node and a supercomputer."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyBboxPatch, Rectangle

from course.charts.base import BLUE, BOX, DARK, GREEN, GREY, PURPLE, SKY, Picture, words_on
from course.charts.primitives import describe
from labs.day0_1_start_here.nodes import Disk, Machine

PALE = "#C9C9C5"


def plot_node(machine: Machine) -> Picture:
    """Draw a node: its processors, memory, GPUs and disks."""
    picture, axes = _canvas(10, 4.9)
    job = f", inside Slurm job {machine.job_id}" if machine.job_id else ""
    _box(axes, 0.05, 1.4, 9.9, 3.45, f"{machine.host}: the node that you are on{job}")
    _draw_processors(axes, machine)
    _box(axes, 4.95, 1.55, 1.3, 2.9, "memory")
    _gauge(axes, 5.3, 2.2, 0.6, 1.85, 1 - machine.memory_free_gib / machine.memory_gib)
    free = f"{_size(machine.memory_gib)}\n{_size(machine.memory_free_gib)} free"
    _write(axes, 5.6, 1.88, free)
    _box(axes, 6.4, 1.55, 3.4, 2.9, "GPU" + "s" * (len(machine.gpus) != 1))
    sizes = [_size(gpu.memory_gib) if gpu.memory_gib else "shared\nmemory" for gpu in machine.gpus]
    words = [f"GPU {number}\n{size}" for number, size in enumerate(sizes)]
    _squares(axes, 6.5, 2.15, 3.2, 1.95, [GREEN] * len(words), words, largest=0.9)
    counts = Counter(gpu.name for gpu in machine.gpus)
    names = "\n".join(f"{count} × {name}" for name, count in counts.most_common(2))
    _write(axes, 8.1, 1.88, names or "none on this node")
    _draw_disks(axes, machine.disks)
    return picture


def _draw_processors(axes: Axes, machine: Machine) -> None:
    sockets, threads = machine.sockets, machine.threads // machine.cores
    cores = machine.cores // sockets
    _box(axes, 0.2, 1.55, 4.6, 2.9, "processor" + "s" * (sockets > 1))
    # Slurm and containers may give a process fewer cores than there are.
    usable = machine.usable_threads // threads
    colours = [BLUE if core < usable else PALE for core in range(machine.cores)]
    width = 4.3 / sockets
    for socket in range(sockets):
        of_socket = colours[socket * cores : (socket + 1) * cores]
        _squares(axes, 0.4 + socket * width, 2.3, width - 0.1, 1.75, of_socket)
    words = f"{sockets} × {cores} cores" if sockets > 1 else f"{cores} cores"
    words += f", {threads} threads each" if threads > 1 else ""
    if machine.usable_threads < machine.threads:
        words += f"; you may use {machine.usable_threads} of {machine.threads} threads"
    _write(axes, 2.5, 1.88, f"{machine.cpu}\n{words}")


def _draw_disks(axes: Axes, disks: Sequence[Disk]) -> None:
    width = 10 / len(disks)
    for number, disk in enumerate(disks):
        left = 0.05 + number * width
        _box(axes, left, 0.1, width - 0.1, 1.1, f"disk for {', '.join(disk.uses)}")
        _gauge(axes, left + 0.15, 0.6, width - 0.4, 0.18, 1 - disk.free_gib / disk.total_gib)
        place = "on the network, visible to other nodes" if disk.shared else "only on this node"
        words = f"{_size(disk.free_gib)} of {_size(disk.total_gib)} free\n{place} ({disk.kind})"
        _write(axes, left + width / 2 - 0.05, 0.36, words, size=8)


def plot_supercomputer() -> Picture:
    """Sketch the parts of a supercomputer, and what belongs where."""
    picture, axes = _canvas(10, 4.6)
    login = "JupyterHub, editors,\nlaunch(…), the internet;\nshared by everyone"
    _box(axes, 0.05, 2.5, 1.5, 1.5, "you", "a browser\nor ssh")
    _box(axes, 2.2, 2.5, 2.05, 1.5, "login nodes", login)
    _box(axes, 4.9, 2.5, 1.35, 1.5, "scheduler", "Slurm: the queue\nof everyone's\njobs")
    for begin, end, words in ((1.55, 2.2, ""), (4.25, 4.9, "sbatch"), (6.25, 6.9, "starts")):
        _arrow(axes, (begin, 3.25), (end, 3.25), words)
    _box(axes, 6.9, 2.05, 3.05, 2.5, "compute nodes, in partitions")
    partitions = (("CPUs", 0), ("4 GPUs per node", 4), ("8 GPUs per node", 8))
    for row, (name, gpus) in enumerate(partitions):
        low = 3.6 - 0.72 * row
        for left in (7.02, 7.64, 8.26):
            axes.add_patch(Rectangle((left, low), 0.56, 0.56, facecolor="white", edgecolor=GREY))
            _squares(axes, left + 0.04, low + 0.06, 0.48, 0.25, [GREEN] * gpus, largest=0.17)
        _write(axes, 9.4, low + 0.28, name, size=8)
    axes.plot([2.2, 9.95], [1.62, 1.62], color=PURPLE, lw=4, solid_capstyle="round")
    _write(axes, 4.6, 1.82, "fast network: all nodes have the same files", colour=PURPLE)
    spaces = {
        "HOME": "settings;\nsmall, backed up",
        "WORK": "code, runs, logs;\nlarge",
        "SCRATCH": "what a job reads and\nwrites fast; cleaned up",
        "STORE": "archives;\nslow, lasting",
        "DSDIR": "public data sets;\nread only",
    }
    _write(axes, 1.1, 0.7, "storage spaces\n(Jean Zay's names)")
    for number, (name, use) in enumerate(spaces.items()):
        _box(axes, 2.2 + 1.57 * number, 0.1, 1.47, 1.2, name, use, size=7.5)
    return picture


def _canvas(width: float, height: float) -> tuple[Picture, Axes]:
    """Return axes whose units are inches, so that text fits its box."""
    picture = Picture(width, height)
    axes = picture.panel()
    axes.set(xlim=(0, width), ylim=(0, height), aspect="equal")
    axes.axis("off")
    return picture, axes


def _box(
    axes: Axes,
    left: float,
    low: float,
    width: float,
    height: float,
    title: str,
    words: str = "",
    size: float = 8.5,
) -> None:
    """Draw a rounded box with a title in the upper left corner and words in the middle."""
    style = {"facecolor": BOX, "edgecolor": GREY, "lw": 0.9, "boxstyle": "round,pad=0.06"}
    axes.add_patch(FancyBboxPatch((left + 0.06, low + 0.06), width - 0.12, height - 0.12, **style))
    place = left + 0.12, low + height - 0.1
    axes.text(*place, title, va="top", fontsize=9, color=DARK, weight="bold")
    describe(axes, "", [title])
    _write(axes, left + width / 2, low + 0.4 * height, words, size=size)


def _squares(
    axes: Axes,
    left: float,
    low: float,
    width: float,
    height: float,
    colours: Sequence[str],
    words: Sequence[str] = (),
    *,
    largest: float = 0.75,
) -> None:
    """Draw a square of each colour, as large as fits; squares that are large enough have words."""
    if not colours:
        return
    count = len(colours)
    sides = {n: min(width / n, height / math.ceil(count / n), largest) for n in range(1, count + 1)}
    columns = max(sides, key=sides.get)
    side = sides[columns]
    top = low + (height + side * math.ceil(count / columns)) / 2
    left += (width - side * columns) / 2
    for number, colour in enumerate(colours):
        row, column = divmod(number, columns)
        x, y = left + (column + 0.08) * side, top - (row + 0.92) * side
        axes.add_patch(Rectangle((x, y), side * 0.84, side * 0.84, color=colour, lw=0))
        if words and side > 0.5:
            middle = x + 0.42 * side, y + 0.42 * side
            _write(axes, *middle, words[number], colour=words_on(colour), size=7.5)


def _gauge(axes: Axes, left: float, low: float, width: float, height: float, used: float) -> None:
    """Draw a bar, filled by the share that is used: upwards if it is high, else rightwards."""
    axes.add_patch(Rectangle((left, low), width, height, facecolor="white", edgecolor=GREY, lw=0.9))
    shape = (width, height * used) if height > width else (width * used, height)
    axes.add_patch(Rectangle((left, low), *shape, color=SKY, lw=0))


def _arrow(
    axes: Axes, begin: tuple[float, float], end: tuple[float, float], words: str = ""
) -> None:
    axes.annotate("", end, begin, arrowprops={"arrowstyle": "->", "color": DARK})
    _write(axes, (begin[0] + end[0]) / 2, (begin[1] + end[1]) / 2 + 0.13, words, size=8)


def _write(
    axes: Axes, x: float, y: float, words: str, *, colour: str = DARK, size: float = 8.5
) -> None:
    """Write words around a point, and add them to the alt text."""
    style = {"ha": "center", "va": "center", "linespacing": 1.35}
    axes.text(x, y, words, fontsize=size, color=colour, **style)
    describe(axes, "", [words])


def _size(gib: float) -> str:
    """Format GiB: 4.1 GiB, 24 GiB, 4.1 TiB."""
    units = ["PiB", "TiB", "GiB"]
    while gib >= 1000 and len(units) > 1:
        gib, _ = gib / 1024, units.pop()
    return f"{gib:.0f} {units[-1]}" if gib >= 10 else f"{gib:.1f} {units[-1]}"
