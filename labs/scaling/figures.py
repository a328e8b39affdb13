"""Figures of training on several GPUs: speed, lost time, overlap, weak and strong scaling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from course.charts import (
    ACCENT,
    BLUE,
    COLOURS,
    DARK,
    GREY,
    ORANGE,
    PURPLE,
    SKY,
    Picture,
    describe,
    heading,
    label,
    legend,
    limit,
    lines,
    timeline,
)
from labs.scaling.model import Bucket, Link, bucket_timeline


def plot_scaling(table: pd.DataFrame) -> Picture:
    """Draw images/s next to the ideal, efficiency and energy, by number of GPUs and rung.

    Args:
        table: from `efficiency.efficiency_table`.
    """
    picture = Picture(10, 3.4)
    speed, share, energy = picture.panels(1, 3)
    for colour, (name, rows) in zip(COLOURS, table.groupby("rung")):
        gpus, look = rows["gpus"], {"colours": colour, "marker": "o"}
        lines(speed, {name: (gpus, rows["images_per_s"])}, **look)
        speed.plot(gpus, gpus * rows["images_per_s"].min(), "--", color=colour, lw=1, alpha=0.6)
        lines(share, {"": (gpus, rows["efficiency"] * 100)}, **look)
        lines(energy, {"": (gpus, rows["joules_per_image"])}, **look)
    limit(share, 100, colour=GREY)
    ticks = {"xlabel": "GPUs", "xticks": sorted(set(table["gpus"]))}
    label(speed, "images per second (dashed: ideal)", size=10, **ticks)
    label(share, "efficiency, %", size=10, **ticks)
    label(energy, "joules per image, all GPUs", size=10, **ticks)
    for axes in (speed, energy):
        axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    speed.legend(frameon=False, fontsize=8)
    recorded = table.groupby("machine")["rung"].unique()
    heading(picture, "\n".join(f"{name}: {', '.join(rungs)}" for name, rungs in recorded.items()))
    return picture


def plot_lost_time() -> Picture:
    """Draw one step of four ranks, one of which gets its images late: what each of them waits for.

    The lengths are examples, not measured.
    """
    picture = Picture(10, 2.5)
    axes = picture.panel()
    late, compute, end = 1.6, 8.0, 11.0
    lanes = {}
    for rank, wait in enumerate((0.0, 0.3, late, 0.1)):
        ready = wait + compute
        spans = [
            (0, wait, ORANGE, "images" if wait == late else ""),
            (wait, compute, SKY, "forward and backward"),
            (ready, late - wait, PURPLE, "wait" if late - wait > 1 else ""),
            (late + compute, end - late - compute, ACCENT, "messages"),
            (end, 0.6, GREY, ""),
        ]
        lanes[f"rank {rank}"] = [span for span in spans if span[1]]
    timeline(axes, lanes)
    axes.set_xticks([])
    label(axes, xlabel="time of one step")
    names = {"waits for its own images": ORANGE, "waits for the slowest rank": PURPLE}
    legend(picture, 5, names | {"messages after backward": ACCENT, "optimizer": GREY})
    return picture


def plot_overlap(
    buckets: Sequence[Bucket], ranks: int, link: Link, backward_s: float, title: str = ""
) -> Picture:
    """Draw backward, and below it when each bucket of gradients is ready and when it is sent."""
    table = bucket_timeline(buckets, ranks, link, backward_s)
    picture = Picture(10, 1.6 + 0.26 * min(len(table) + 1, 14))
    axes = picture.panel()
    lanes = {"backward": [(0, backward_s * 1e3, GREY, "")]}
    for number, row in enumerate(table.itertuples(), 1):
        middle_s = min(max(row.start_s, backward_s), row.end_s)
        spans = [(row.start_s, middle_s, SKY), (middle_s, row.end_s, ACCENT)]
        lanes[f"{number}: {row.size / 1e6:.1f} MB"] = [
            (begin * 1e3, (end - begin) * 1e3, colour, "") for begin, end, colour in spans
        ]
        axes.plot(row.ready_s * 1e3, number, "|", color=DARK, ms=8)
    timeline(axes, lanes, heights=[0.8])
    axes.set_yticklabels(name.rpartition(": ")[2] for name in lanes)
    axes.axvline(backward_s * 1e3, color=GREY, lw=1, ls=":")
    words = "milliseconds since backward began; a tick: the bucket is ready"
    label(axes, title, size=10, xlabel=words)
    exposed = "sent after it: makes the step longer"
    legend(picture, 2, {"sent during backward": SKY, exposed: ACCENT})
    return picture


def plot_weak_and_strong(
    predicted: Mapping[str, Mapping[int, float]], recorded: Mapping[str, Mapping[int, float]]
) -> Picture:
    """Draw predicted efficiencies as lines and recorded ones as points; both by number of GPUs."""
    picture = Picture(10, 3.2)
    speed, share = picture.panels(1, 2)
    counts = sorted({gpus for values in predicted.values() for gpus in values})
    speed.plot(counts, counts, "--", color=GREY, lw=1, label="ideal")
    for colour, (name, values) in zip((BLUE, ORANGE), predicted.items()):
        for axes, unit in ((speed, lambda gpus: gpus), (share, lambda gpus: 100)):
            curve = [*values], [unit(gpus) * value for gpus, value in values.items()]
            lines(axes, {f"{name}, predicted": curve}, colours=colour)
            points = {gpus: unit(gpus) * value for gpus, value in recorded[name].items()}
            axes.plot(*zip(*points.items()), "o", color=colour, ms=6, label=f"{name}, recorded")
            describe(axes, f"{name}, recorded", [f"{n}: {y:.3g}" for n, y in points.items()])
    for axes, words in ((speed, "speed-up"), (share, "efficiency, %")):
        label(axes, words, size=10, xlabel="GPUs", xscale="log")
        axes.set_xticks(counts, counts)
        axes.minorticks_off()
    speed.set_yscale("log")
    speed.set_yticks(counts, counts)
    speed.minorticks_off()
    share.set_ylim(0, 104)
    legend(picture, 3)
    return picture
