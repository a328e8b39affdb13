"""Figures of loading: timelines, waiting and computing, an image's cost, cores needed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from course import Run
from course.charts import (
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    SKY,
    Picture,
    label,
    legend,
    limit,
    lines,
    scatter_fit,
    stack,
    timeline,
)
from course.lab import digits
from labs.dataloader import loading

LOAD, COMPUTING = "waiting for the batch", "computing"
STEP_COLOURS = {LOAD: ORANGE, COMPUTING: BLUE}
QUEUE, GAP = GREY, 0.06  # between two events of a lane


def plot_schedule(
    workers: Sequence[int] = (0, 2, 4), load: float = 3.5, train: float = 1.0, end: float = 14.0
) -> Picture:
    """Draw workers, queue, main process and GPU on one axis of time.

    Args:
        workers: a panel for each number of workers.
        load: time to load a batch, in the same unit as `train` (to train on it) and `end`.
    """
    heights = [count + (3 if count else 2) for count in workers]
    picture = Picture(10, 1.4 + 0.3 * sum(heights) + 0.35 * len(workers))
    panels = picture.panels(len(workers), sharex=True, height_ratios=heights)
    for axes, count in zip(panels, workers):
        lanes = _schedule(count, load, train, end)
        timeline(axes, lanes, heights=[0.78])
        waits = sum(length for _, length, colour, _ in lanes["GPU"][1:] if colour == ORANGE)
        words = f"{count} workers" if count else "no workers"
        words += f": after its first batch, the GPU waits {waits / (end - load):.0%} of the time"
        label(axes, words, size=10)
        axes.set_xlim(0, end)
    panels[-1].set_xlabel("time, in steps of the GPU; the numbers are batches", fontsize=9)
    names = {"loads a batch": SKY, "batches in the queue": QUEUE, "copies, starts kernels": GREEN}
    legend(picture, 5, names | {"the GPU waits": ORANGE, "the GPU computes": BLUE})
    return picture


def _schedule(
    workers: int, load: float, train: float, end: float, copy: float = 0.25
) -> dict[str, list[tuple[float, float, str, str]]]:
    """Return the lanes of `plot_schedule`: (begin, length, colour, words) of each event."""
    loaders = [f"worker {number + 1}" for number in range(workers)]
    lanes = {name: [] for name in [*loaders, *["queue"] * bool(workers), "main process", "GPU"]}
    ready, taken, free = [], [], 0.0  # of each batch; when the GPU is free
    for batch in range(int(end * max(1, workers) / load) + 1):
        loader = loaders[batch % workers] if workers else "main process"
        begin = batch // max(1, workers) * load
        if not workers:  # it also copies, and can load while the GPU computes
            begin += batch * copy
        ready.append(begin + load)
        taken.append(max(ready[-1], free))
        lanes[loader].append((begin, load - GAP, SKY, str(batch + 1)))
        lanes["main process"].append((taken[-1], copy - GAP, GREEN, ""))
        if taken[-1] > free + GAP:
            lanes["GPU"].append((free, taken[-1] - free - GAP, ORANGE, ""))
        lanes["GPU"].append((taken[-1], train - GAP, BLUE, str(batch + 1)))
        free = taken[-1] + train
    changes = sorted({*ready, *taken})
    for begin, until in zip(changes, changes[1:]):
        count = sum(at <= begin for at in ready) - sum(at <= begin for at in taken)
        if count and workers:
            lanes["queue"].append((begin, until - begin - GAP, QUEUE, str(count)))
    return {name: [event for event in lane if event[0] < end] for name, lane in lanes.items()}


def plot_waiting(
    runs: Sequence[tuple[str, pd.DataFrame]],
    warmup_steps: int | Sequence[int] = 0,
    waiting: str = LOAD,
) -> Picture:
    """Draw each step as a bar: waiting for its batch below, computing above it.

    Args:
        runs: (name, steps) of each run, for instance `run.steps`.
        warmup_steps: drawn pale, because times leave them out; of all runs, or one of each.
        waiting: what a step does before computing, for the legend.
    """
    picture = Picture(9.5, 1.0 + 1.55 * len(runs))
    grid = picture.panels(len(runs), sharex=True, sharey=True)
    warmups = [warmup_steps] * len(runs) if isinstance(warmup_steps, int) else warmup_steps
    for axes, (name, steps), warmup in zip(grid, runs, warmups):
        load, step = steps["load_s"] * 1e3, steps["step_s"] * 1e3
        for warm in (True, False):
            rows = (steps["step"] < warmup) == warm
            look = {"width": 0.85, "alpha": 0.35 if warm else 1.0}
            places = steps["step"][rows]
            axes.bar(places, load[rows], color=ORANGE, **look)
            axes.bar(places, (step - load)[rows], bottom=load[rows], color=BLUE, **look)
        for border in steps.groupby("epoch")["step"].min():
            limit(axes, border - 0.5, colour=DARK, along="x")
        label(axes, name, size=10)
    # The first steps pay for starting and may be much taller than all others: cut them.
    highest_s = max(steps["step_s"][warmup:].max() for (_, steps), warmup in zip(runs, warmups))
    grid[0].set_ylim(0, 1.15e3 * highest_s)
    grid[-1].set_xlabel("training step (pale: warm-up, may be cut off; dashed: start of an epoch)")
    grid[-1].xaxis.set_major_locator(MaxNLocator(integer=True))
    picture.supylabel("milliseconds", fontsize=10)
    legend(picture, 2, {waiting: ORANGE, COMPUTING: BLUE})
    return picture


def plot_trials(table: pd.DataFrame) -> Picture:
    """Draw the mean step of each trial: waiting and computing, with images/s and host memory.

    Args:
        table: from `loading.trials`.
    """
    table = table[table["step_ms"].notna()]
    picture = Picture(9.5, 1.3 + 0.42 * max(len(table), 1))
    axes = picture.panel()
    times = (table["load_ms"], table["step_ms"] - table["load_ms"])
    memory = table["host_gib"].map(lambda gib: f", {gib:.2f} GiB" if pd.notna(gib) else "")
    words = list(table["images_per_s"].map(digits) + " images/s" + memory)
    look = {"words": words, "colours": STEP_COLOURS, "room": 1.3}
    stack(axes, list(table["run"]), dict(zip(STEP_COLOURS, times)), **look)
    label(
        axes,
        "\n".join(dict.fromkeys(table["machine"])),
        xlabel="mean milliseconds per step; memory of the training process and its workers",
    )
    legend(picture, 2)
    return picture


def plot_decoding(profiles: dict[str, pd.DataFrame]) -> Picture:
    """Draw how long one core works on one image, stage by stage, one bar per profile.

    Args:
        profiles: from `loading.decode_profile`, by the name to show.
    """
    picture = Picture(9.5, 1.5 + 0.5 * len(profiles))
    axes = picture.panel()
    stages = pd.concat(profiles).reset_index().pivot(index="stage", columns="level_0", values="ms")
    stages = stages.loc[next(iter(profiles.values()))["stage"], list(profiles)]
    words = [f"{ms:.1f} ms: {digits(1e3 / ms)} images/s per core" for ms in stages.sum()]
    look = {"inside": "{share:.0%}", "least": 0.07, "room": 1.4}
    stack(axes, list(profiles), dict(stages.iterrows()), words=words, **look)
    label(axes, xlabel="milliseconds per image on one core")
    legend(picture, 7)
    return picture


def plot_cores_needed(machine: str, no_workers: Run, measured: pd.DataFrame) -> Picture:
    """Draw the images/s that cores load and that each rung trains; where they cross, it is fed.

    Args:
        machine: a recorded machine, such as "nvidia-h200".
        no_workers: its run without workers, from which a core's speed follows.
        measured: its trials, from `loading.trials`, to add as points.
    """
    speeds, core_speed = loading.training_speeds(machine), loading.core_speed(no_workers)
    cores = no_workers.record.hardware["cores"]
    picture = Picture(9.5, 4.6)
    axes = picture.panel()
    top = speeds["images_per_s"].max() * 1.12
    most = max(top / core_speed, cores * 1.1)
    supply = f"supply: {digits(core_speed)} images/s per core"
    lines(axes, {supply: ([0, most], [0, most * core_speed])}, colours=ORANGE)
    _rung_lines(axes, speeds, core_speed, top, most)
    limit(axes, cores, f"this machine has {cores} cores", along="x")
    rows = measured.query("workers > 0")
    points = {"measured, by number of workers": (rows["workers"], rows["images_per_s"])}
    scatter_fit(axes, points, colours=GREEN, markers="D")
    title = f"{no_workers.record.machine}; trained: synthetic data, batch 256"
    frame = {"xlabel": "cores that load images", "ylabel": "images per second"}
    label(axes, title, xlim=(0, most), ylim=(0, top), **frame)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    legend(picture, 3)
    return picture


def _rung_lines(
    axes: Axes, speeds: pd.DataFrame, core_speed: float, top: float, most: float
) -> None:
    """Draw a line from the left to the supply for each rung, with words beyond the right edge."""
    height = -np.inf
    for row in speeds.itertuples():
        needed, speed = row.images_per_s / core_speed, row.images_per_s
        height = max(speed, height + top * 0.052)  # so that words do not overlap
        axes.plot([0, needed], [speed] * 2, color=BLUE, lw=1)
        axes.plot(needed, speed, "o", color=BLUE, ms=4)
        axes.annotate(
            f"{row.rung} {row.precision}: {digits(speed)}, {np.ceil(needed):.0f} cores",
            (needed, speed),
            (most * 1.03, height),
            va="center",
            fontsize=8.5,
            arrowprops={"arrowstyle": "-", "color": GREY, "lw": 0.6},
        )
