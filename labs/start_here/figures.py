"""Drawings of a node, a supercomputer and backfill."""

from __future__ import annotations

from collections import Counter

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
    limit,
    mark,
    strip,
    timeline,
)
from labs.start_here.nodes import Machine, this_machine

FEWEST_CELLS = 12  # in the width of a row, so that a few cores are not drawn huge


def plot_node(machine: Machine | None = None) -> Picture:
    """Draw a node, by default this one: its cores, GPUs, memory and disks."""
    machine = machine or this_machine()
    picture = Picture(10, 2.9 + 0.45 * (machine.sockets + len(machine.disks)))
    heights = [machine.sockets, 1.4, 0.8 * (1 + len(machine.disks))]
    cores, gpus, storage = picture.panels(3, height_ratios=heights)
    threads, per_socket = machine.threads // machine.cores, machine.cores // machine.sockets
    # Slurm and containers may give a process fewer cores than there are.
    usable = machine.usable_threads // threads
    cells = [(BLUE if core < usable else GREY + "40", "") for core in range(machine.cores)]
    rows = {
        f"processor {socket}": cells[socket * per_socket : (socket + 1) * per_socket]
        for socket in range(machine.sockets)
    }
    strip(cores, rows, words=[f"{per_socket} cores"] * machine.sockets)
    cores.set_xlim(-0.3, 1.1 * max(per_socket, FEWEST_CELLS))
    job = f", inside Slurm job {machine.job_id}" if machine.job_id else ""
    words = f"{machine.host}: the node that you are on{job}\n{machine.cpu}"
    words += f", {threads} threads per core" if threads > 1 else ""
    if machine.usable_threads < machine.threads:
        words += f"; you may use {machine.usable_threads} of {machine.threads} threads"
    label(cores, words)
    sizes = [_size(gpu.memory_gib) if gpu.memory_gib else "shared" for gpu in machine.gpus]
    cells = [(GREEN, f"GPU {number}\n{size}") for number, size in enumerate(sizes)]
    strip(gpus, {"GPUs": cells or [(GREY + "40", "")]})
    gpus.set_xlim(-0.3, 1.1 * max(len(cells), FEWEST_CELLS))
    counts = Counter(gpu.name for gpu in machine.gpus)
    names = ", ".join(f"{count} × {name}" for name, count in counts.items())
    label(gpus, names or "none on this node")
    spaces = {"memory": (machine.memory_free_gib, machine.memory_gib, "")}
    for disk in machine.disks:
        place = "on the network, visible to other nodes" if disk.shared else "only on this node"
        name = f"disk for {', '.join(disk.uses)}"
        spaces[name] = disk.free_gib, disk.total_gib, f"; {place} ({disk.kind})"
    used = [100 * (1 - free / total) for free, total, _ in spaces.values()]
    texts = [f"{_size(free)} of {_size(total)} free{w}" for free, total, w in spaces.values()]
    bars(storage, [*spaces], used, words=texts, pale=[100] * len(used), colours=SKY, room=2)
    label(storage, xlabel="% in use", xticks=(0, 50, 100))
    return picture


def plot_supercomputer() -> Picture:
    """Sketch the parts of a supercomputer, and what belongs where."""
    picture = Picture(10, 3.4)
    axes = picture.panel()
    axes.set(xlim=(0, 10), ylim=(0, 4))
    axes.axis("off")
    _box(axes, 0.6, 2.9, "you", "a browser\nor ssh")
    words = "JupyterHub, editors,\nlaunch(…), the internet;\nshared by everyone"
    _box(axes, 3.0, 2.9, "login nodes", words)
    _box(axes, 5.5, 2.9, "scheduler", "Slurm: the queue\nof everyone's\njobs")
    words = "CPUs\n4 GPUs per node\n8 GPUs per node"
    _box(axes, 8.4, 2.9, "compute nodes, in partitions", words)
    for begin, end, words in ((1.15, 2.0, ""), (4.0, 4.75, "sbatch"), (6.25, 7.1, "starts")):
        arrow = {"arrowstyle": "->", "color": DARK}
        axes.annotate("", (end, 2.9), (begin, 2.9), arrowprops=arrow)
        axes.text((begin + end) / 2, 3.05, words, ha="center", fontsize=8, color=DARK)
    axes.plot([2.0, 9.95], [1.7, 1.7], color=PURPLE, lw=4)
    network = "fast network: all nodes have the same files"
    axes.text(4.6, 1.8, network, ha="center", fontsize=9, color=PURPLE)
    describe(axes, "", ["an arrow from each to the next: sbatch, starts", network])
    _box(axes, 0.75, 0.7, "storage spaces", "Jean Zay's\nnames")
    uses = {
        "HOME": "settings;\nsmall, backed up",
        "WORK": "code, runs, logs;\nlarge",
        "SCRATCH": "what a job reads and\nwrites fast; cleaned up",
        "STORE": "archives;\nslow, lasting",
        "DSDIR": "public data sets;\nread only",
    }
    for place, (name, use) in enumerate(uses.items()):
        _box(axes, 2.55 + 1.65 * place, 0.7, name, use)
    return picture


def plot_backfill() -> Picture:
    """Sketch how eight nodes are used: a large job waits, and short jobs fill the gap before it."""
    picture = Picture(9.5, 3.6)
    axes = picture.panel()
    running = [(0, 60, GREY, "running")]
    short = [(0, 50, GREEN, "50 min"), (60, 120, ORANGE, "large job")]
    lanes = {f"node {number}": running + short[1:] for number in (1, 2, 3)}
    lanes |= {"node 4": short, "node 5": [(0, 19.5, GREEN, "20 min"), (20, 30, GREEN, "30 min")]}
    lanes["node 5"] += short[1:]
    lanes |= {f"node {number}": short[1:] for number in (6, 7, 8)}
    timeline(axes, lanes)
    limit(axes, 60, along="x")
    mark(axes, 0, 6, "idle: a 20-hour job doesn't fit", size=8.5)
    ticks = {"xticks": (0, 60, 120, 180), "xticklabels": ("now", "1 h", "2 h", "3 h")}
    label(axes, "a sketch", xlim=(0, 185), **ticks)
    return picture


def _box(axes: Axes, x: float, y: float, title: str, words: str) -> None:
    """Write a title and words in a box around a point."""
    style = {"facecolor": "#f6f6f4", "edgecolor": GREY, "boxstyle": "round,pad=0.6"}
    bold = rf"$\bf{{{title.replace(' ', chr(92) + ' ')}}}$"
    look = {"ha": "center", "va": "center", "fontsize": 8.5, "color": DARK, "linespacing": 1.4}
    axes.text(x, y, f"{bold}\n{words}", bbox=style, **look)
    describe(axes, "", [f"{title}: {words}"])


def _size(gib: float) -> str:
    """Format GiB: 4.1 GiB, 24 GiB, 4.1 TiB."""
    units = ["PiB", "TiB", "GiB"]
    while gib >= 1000 and len(units) > 1:
        gib, _ = gib / 1024, units.pop()
    return f"{gib:.0f} {units[-1]}" if gib >= 10 else f"{gib:.1f} {units[-1]}"
