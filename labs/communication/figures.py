"""Figures of communication: time by size, DDP's calls, a step's timeline, its buckets."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from course.analysis import communication
from course.charts import (
    ACCENT,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PHASE_COLOURS,
    PURPLE,
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
VISIBLE = 0.0015  # of the picture's width: of short collectives, and of the gap after long ones
SMALL = 5e5  # bytes: smaller collectives have no words
MESSAGE, GAP = 1.9, 0.05  # duration of a message, and between two bars, in a sketch
SIZES = ("1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB")


def plot_link_times(links: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw the time of all-reduces by their size.

    Args:
        links: from `measure_link` or `recorded_links`, by name.
    """
    picture = Picture(9, 3.6)
    axes = picture.panel()
    lines(axes, {k: (t["bytes"], 1e6 * t["seconds"]) for k, t in links.items()}, marker="o")
    label(
        axes, xscale="log", yscale="log", xlabel="bytes of each rank", ylabel="µs of an all-reduce"
    )
    axes.set_xticks([2**10, 2**14, 2**18, 2**22, 2**26], SIZES)
    axes.minorticks_off()
    legend(picture, 3)
    return picture


def plot_calls(weights: int = 6) -> Picture:
    """Sketch (not a measurement) when DDP's five functions run, with two weights per bucket."""
    network, calls, messages = "network", "your functions", "all-reduce"
    lanes = {network: [], calls: [], messages: []}
    now, arrivals = 0.0, []

    def add(lane: str, length: float, colour: str, words: str = "") -> None:
        nonlocal now
        lanes[lane].append((now, length - GAP, colour, words))
        now += length

    add(calls, 1.95, DARK, "make_buckets")
    add(calls, 1.05, DARK, "watch")
    add(network, 1.35, PHASE_COLOURS["forward"], "forward")
    for weight in range(weights, 0, -1):
        add(network, 1.0, PHASE_COLOURS["backward"], f"w{weight}")
        add(calls, 0.25, GREEN)
        if weight % 2:  # the bucket is complete
            add(calls, 0.75, PURPLE, "send")
            arrivals.append(now + MESSAGE)
            colour = ACCENT if weight == 1 else GREY
            lanes[messages].append((now, MESSAGE - GAP, colour, f"bucket {len(arrivals)}"))
    for arrival in arrivals:
        now = max(now, arrival)
        add(calls, 0.95, ORANGE, "receive")
    picture = Picture(10, 2.5)
    axes = picture.panel()
    timeline(axes, lanes)
    label(axes, "one step of one rank", size=10, xlabel="time", xticks=[], xlim=(0, now))
    names = {"once, before training": DARK, "hook": GREEN, "the hook calls send": PURPLE}
    legend(picture, 6, names | {"wait calls receive": ORANGE, "hidden": GREY, "exposed": ACCENT})
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
    busy, shortest = communication.computing(trace), VISIBLE * (end - start)
    sizes: dict[str, list[tuple[float, str]]] = {}  # by lane: centre in ms, megabytes
    for operation, ranges in rows.groupby("operation", sort=False):
        for row, lane in zip(ranges.itertuples(), _free_lanes(ranges)):
            name = operation.replace("_", "-") + " " * lane
            whole = (row.start_s, row.start_s + row.duration_s)
            span = (row.start_s, row.start_s + max(row.duration_s - shortest, shortest))
            exposed = traces.subtract_intervals(span, busy)
            if row.duration_s < shortest:
                exposed = [] if traces.overlap_s(whole, busy) > row.duration_s / 2 else [span]
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
    timeline(axes, lanes, heights=[0.6])
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
