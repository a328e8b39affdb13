"""Figures of communication: bandwidth, a step's timeline, its buckets, BatchNorm's spread."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from course.analysis import communication
from course.charts import (
    ACCENT,
    GREEN,
    GREY,
    ORANGE,
    PHASE_COLOURS,
    Picture,
    describe,
    label,
    legend,
    lines,
    mark,
    stack,
    timeline,
)
from trainspeed import traces
from trainspeed.phases import PHASES

NARROW = 0.05  # of the picture's width: narrower bars have no room for words
VISIBLE = 0.0015  # of the picture's width: shorter collectives are drawn this wide
SMALL = 5e5  # bytes: smaller collectives have no words
SIZES = ("1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB")


def plot_bandwidth(links: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw the time and the bus bandwidth of all-reduces by their size.

    Args:
        links: from `measure_link` or `recorded_links`, with a column bus_gb_s; by name.
    """
    picture = Picture(10, 3.6)
    time, bandwidth = picture.panels(1, 2)
    axes = {"xscale": "log", "yscale": "log", "xlabel": "what each rank contributes"}
    lines(time, {k: (t["bytes"], 1e6 * t["seconds"]) for k, t in links.items()}, marker="o")
    lines(bandwidth, {k: (t["bytes"], t["bus_gb_s"]) for k, t in links.items()}, marker="o")
    label(time, "µs of an all-reduce", size=10, **axes)
    label(bandwidth, "bus bandwidth, GB/s", size=10, **axes)
    for panel in (time, bandwidth):
        panel.set_xticks([2**10, 2**14, 2**18, 2**22, 2**26], SIZES)
        panel.minorticks_off()
    legend(picture, 3)
    return picture


def plot_timeline(trace: traces.Trace) -> Picture:
    """Draw the first traced step: what the rank computes above, what it sends below.

    Raises:
        ValueError: the trace has no collectives.
    """
    rows = trace.collectives
    if rows.empty:
        raise ValueError(f"{trace.source} has no collectives: launch with gpus=2 or more")
    number = min(set(rows["step"]) - {-1})
    rows = rows[rows["step"] == number]
    step = traces.steps(trace).set_index("step").loc[number]
    # On the device, a step ends after its last kernel.
    work = pd.concat([rows, trace.kernels[trace.kernels["step"] == number]])
    start, end = step["start_s"], max(step["end_s"], (work["start_s"] + work["duration_s"]).max())

    phases = trace.ranges[trace.ranges["name"].isin(PHASES)].groupby("name")
    device = "GPU: computing" if len(trace.kernels) else "CPU: computing"
    parts = {
        "host: phase": [
            (traces.intervals_of(ranges), PHASE_COLOURS[name], "") for name, ranges in phases
        ],
        device: [
            (communication.computing(trace, phase), PHASE_COLOURS[phase], "") for phase in PHASES
        ],
    }
    busy = communication.computing(trace)
    sizes: dict[str, list[tuple[float, str]]] = {}  # by lane: centre in ms, megabytes
    for operation, ranges in rows.groupby("operation", sort=False):
        for row, lane in zip(ranges.itertuples(), _free_lanes(ranges)):
            name = operation.replace("_", "-") + " " * lane
            span = (row.start_s, row.start_s + row.duration_s)
            exposed = traces.subtract_intervals(span, busy)
            if row.duration_s < VISIBLE * (end - start):
                is_hidden = traces.overlap_s(span, busy) > row.duration_s / 2
                span = (row.start_s, row.start_s + VISIBLE * (end - start))
                exposed = [] if is_hidden else [span]
            parts.setdefault(name, []).extend([([span], GREY, ""), (exposed, ACCENT, "")])
            if row.duration_s > NARROW * (end - start) and row.bytes > SMALL:
                centre = (sum(span) / 2 - start) * 1e3
                sizes.setdefault(name, []).append((centre, f"{row.bytes / 1e6:.0f} MB"))
    lanes = {
        name: [piece for part in ranges for piece in _clip(*part, start, end)]
        for name, ranges in parts.items()
    }
    picture = Picture(10, 1.9 + 0.42 * len(lanes))
    axes = picture.panel()
    timeline(axes, lanes, heights=(0.6, 0.8, 0.6))
    for name, marks in sizes.items():
        for centre, words in marks:
            mark(axes, centre, list(lanes).index(name) - 0.3, words, "above", size=8)
        describe(axes, name.strip(), [words for _, words in marks])
    axes.set_yticklabels("" if name.endswith(" ") else name for name in lanes)
    title = f"step {number}: {trace.device or 'CPU'}{trace.recorded}"
    words = "milliseconds since the step began on the host"
    label(axes, title, size=10, xlabel=words, xlim=(0, (end - start) * 1e3))
    colours = {name: PHASE_COLOURS[name] for name in PHASES}
    legend(picture, 7, colours | {"sending, hidden": GREY, "exposed": ACCENT})
    return picture


def _clip(
    spans: traces.Intervals, colour: str, words: str, start: float, end: float
) -> list[tuple[float, float, str, str]]:
    """Cut spans to a window, in milliseconds since its start."""
    inside = [(max(begin, start), min(stop, end)) for begin, stop in spans]
    return [
        ((begin - start) * 1e3, (stop - begin) * 1e3, colour, words)
        for begin, stop in inside
        if stop > begin
    ]


def _free_lanes(rows: pd.DataFrame) -> list[int]:
    """Choose a lane for each collective, so that no collective covers another."""
    ends: list[float] = []
    lanes = []
    for begin, length in zip(rows["start_s"], rows["duration_s"]):
        free = next((lane for lane, end in enumerate(ends) if end <= begin), len(ends))
        ends[free : free + 1] = [begin + length]
        lanes.append(free)
    return lanes


def plot_buckets(reports: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw how runs divide the same gradients: bytes of each all-reduce, hidden and exposed time.

    Args:
        reports: from `comm_report`, by the name of the row.
    """
    picture = Picture(10, 1.5 + 0.5 * len(reports))
    left, right = picture.panels(1, 2, sharey=True, width_ratios=[3, 2])
    first_steps = [report[report["step"] == report["step"].min()] for report in reports.values()]
    backward = [report[report["phase"] == "backward"] for report in first_steps]
    for place, rows in enumerate(backward):
        sizes = rows["bytes"] / 1e6
        look = {"color": PHASE_COLOURS["backward"], "ec": "white", "height": 0.6}
        left.barh([place] * len(rows), sizes, left=sizes.cumsum() - sizes, **look)
        mark(left, sizes.sum(), place, str(len(rows)))
    times = {
        "hidden": [rows["overlapped_ms"].sum() for rows in backward],
        "exposed": [rows["exposed_ms"].sum() for rows in backward],
    }
    stack(right, list(reports), times, words=[""] * len(reports), colours=(GREY, ACCENT))
    left.margins(x=0.1)
    label(left, xlabel="MB in each collective of backward, in order; their number")
    label(right, xlabel="milliseconds in transit, in one step")
    legend(picture, 2, {"hidden": GREY, "exposed": ACCENT})
    return picture


def plot_rank_spread(spreads: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw how far apart the ranks' running means are, from the first BatchNorm to the last.

    Args:
        spreads: from `batchnorm.rank_spread`, by the name of the line.
    """
    picture = Picture(9, 3.2)
    axes = picture.panel()
    curves = {
        f"{name}: median": (spread["depth"], spread["spread"]) for name, spread in spreads.items()
    }
    bands = {
        f"{name}: median": (spread["spread"], spread["largest"]) for name, spread in spreads.items()
    }
    lines(axes, curves, bands=bands, colours=(ACCENT, GREEN, ORANGE, GREY), marker="o")
    layers = next(iter(spreads.values()))
    shown = layers[:: max(1, len(layers) // 10)]
    axes.set_xticks(shown["depth"], shown["layer"], rotation=35, ha="right", fontsize=8)
    words = "running means: how far\napart, in std deviations"
    label(axes, "pale: up to the largest", ylabel=words)
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=9)
    return picture
