"""Plot a profiler's trace, one step on a timeline and what takes the time; and the limits."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes

from course.charts import (
    BLUE,
    DARK,
    GREY,
    ORANGE,
    PHASE_COLOURS,
    SKY,
    Picture,
    bars,
    describe,
    label,
    legend,
    timeline,
)
from trainspeed import traces
from trainspeed.phases import PHASES

CPU_LANES = 6  # operators on a CPU's timeline
MOST_BARS = 10


def plot_timeline(trace: traces.Trace) -> Picture:
    """Plot the last complete step: the host's phases and operators above the GPU's work.

    Args:
        trace: from `trainspeed.traces.tables.read` or `read_nsys`.

    Raises:
        ValueError: the trace has no times.
    """
    start, end, number = _window(trace)
    lanes = _lanes(trace, start, end)
    picture = Picture(10, 1.6 + 0.36 * len(lanes))
    axes = picture.panel()
    spans = {
        name: [
            (
                (row.start_s - start) * 1e3,
                row.duration_s * 1e3,
                PHASE_COLOURS.get(row.phase, GREY),
                "",
            )
            for row in rows.itertuples()
        ]
        for name, rows, _ in lanes
    }
    timeline(axes, spans, heights=[height for *_, height in lanes])
    machine = f"{trace.device or 'CPU'}, {trace.source}{trace.recorded}"
    label(
        axes,
        f"step {number}: {machine}" if number >= 0 else f"complete trace: {machine}",
        size=10,
        xlabel="milliseconds since the step began on the host",
        xlim=(0, (end - start) * 1e3),
    )
    phases = set(pd.concat([rows["phase"] for _, rows, _ in lanes]))
    colours = {phase: PHASE_COLOURS[phase] for phase in PHASES if phase in phases}
    legend(picture, 6, colours | ({"outside any phase": GREY} if phases - set(PHASES) else {}))
    return picture


def _window(trace: traces.Trace) -> tuple[float, float, int]:
    """Return begin and end in seconds, and the number, of the last step; -1 for all of a trace."""
    complete = traces.steps(trace)
    spans = pd.concat([trace.operators, trace.kernels, trace.ranges])[["start_s", "duration_s"]]
    if spans["start_s"].isna().all():
        raise ValueError(f"{trace.source} has no times for a timeline: use plot_time_by instead")
    if complete.empty:
        return spans["start_s"].min(), spans.sum(axis=1).max(), -1
    last = complete.loc[complete["step"].idxmax()]
    kernels = trace.kernels[trace.kernels["step"] == last["step"]]
    ends = [last["end_s"], *(kernels["start_s"] + kernels["duration_s"])]
    return last["start_s"], max(ends), int(last["step"])


def _lanes(trace: traces.Trace, start: float, end: float) -> list[tuple[str, pd.DataFrame, float]]:
    """Return lanes from top to bottom: label, rows between two times, height of the bars."""
    phases = trace.ranges[trace.ranges["name"].isin(PHASES)]
    lanes = [("host: phase", phases.assign(phase=phases["name"]), 0.8)]
    if trace.kernels.empty:
        for name in traces.by_operator(trace)["name"].head(CPU_LANES):
            operators = trace.operators[trace.operators["name"] == name]
            lanes.append((_short_name(name), operators, 0.62))
    else:
        lanes.append(("host: operators", trace.operators[trace.operators["depth"] == 0], 0.3))
        several = trace.kernels["device"].nunique() > 1
        for (device, stream), rows in trace.kernels.groupby(["device", "stream"], dropna=False):
            gpu = f"GPU {device}" if several else "GPU"
            lanes.append((f"{gpu}: stream {stream:g}", rows, 0.8))
        lanes.append(("GPU: copies", trace.copies, 0.5))
    return [(name, _clip(rows, start, end), height) for name, rows, height in lanes]


def _clip(rows: pd.DataFrame, start: float, end: float) -> pd.DataFrame:
    begin = rows["start_s"].clip(lower=start)
    length = (rows["start_s"] + rows["duration_s"]).clip(upper=end) - begin
    rows = rows.assign(start_s=begin, duration_s=length)[["start_s", "duration_s", "phase"]]
    return rows[length > 0]


def plot_time_by(table: pd.DataFrame) -> Picture:
    """Plot what takes the time: bars with shares, and one bar for the rest.

    Args:
        table: from `trainspeed.traces.tables.by_operator`, or `by_kernel`.
    """
    on_cpu = "measured" in table and (table["measured"] == "CPU").any()
    largest, rest = table.head(MOST_BARS), table.iloc[MOST_BARS:]
    largest = largest.assign(name=largest["name"].map(_short_name))
    colours = [ORANGE if on_cpu else BLUE] * len(largest)
    if rest["seconds"].sum() > 0:
        total = {"name": f"{len(rest)} others", **rest[["seconds", "share"]].sum()}
        largest = pd.concat([largest, pd.DataFrame([total])])
        colours.append(GREY)
    picture = Picture(9, 1.0 + 0.32 * max(len(largest), 1))
    axes = picture.panel()
    look = {"words": [f"{share:.1%}" for share in largest["share"]], "colours": colours}
    bars(axes, list(largest["name"]), largest["seconds"] * 1e3, room=1.12, **look)
    clock = "CPU, without the operators inside" if on_cpu else "GPU"
    label(axes, xlabel=f"milliseconds in the complete trace ({clock})")
    return picture


def _short_name(name: str) -> str:
    """Cut a long name in its middle."""
    return name if len(name) <= 56 else f"{name[:28]}…{name[-27:]}"


# The tree of limits: place, title, words; below each question its two answers.
QUESTIONS = {
    "busy": (3.6, 3.9, "Is the device busy?", "nearly all the time"),
    "products": (1.75, 2.35, "Is it multiplying?", "most of that time"),
    "load": (5.6, 2.95, "Is the host loading?", "most of the time"),
    "waits": (7.75, 1.95, "Is the host waiting?", "often in each step"),
}
LIMITS = {
    "compute": (0.75, "fewer bits per number,\nTensor Cores"),
    "memory": (2.75, "fewer bytes: 16 bits,\nfused kernels"),
    "input": (4.75, "more workers,\nfaster decoding"),
    "synchronisation": (6.85, "read values rarely,\nonce in many steps"),
    "launches": (9.0, "a larger batch,\na CUDA graph"),
}
ANSWERS = {  # yes, no
    "busy": ("products", "load"),
    "products": ("compute", "memory"),
    "load": ("input", "waits"),
    "waits": ("synchronisation", "launches"),
}


def plot_limits_tree() -> Picture:
    """Draw the questions that find a step's limit, and what helps against each."""
    picture = Picture(10, 4)
    axes = picture.panel()
    axes.set(xlim=(-0.3, 10.1), ylim=(-0.1, 4.4))
    axes.axis("off")
    places = {name: place[:2] for name, place in QUESTIONS.items()}
    places |= {name: (x, 0.5) for name, (x, _) in LIMITS.items()}
    for question, answers in ANSWERS.items():
        for answer, word in zip(answers, ("yes", "no")):
            (x, y), (end, below) = places[question], places[answer]
            axes.plot([x, end], [y, below], color=GREY, lw=1.2, zorder=0)
            look = {"ha": "center", "va": "center", "fontsize": 8.5, "color": DARK}
            paper = {"facecolor": "white", "edgecolor": "none", "pad": 1.5}
            axes.text((x + end) / 2, (y + below) / 2, word, bbox=paper, **look)
        describe(axes, QUESTIONS[question][2], [f"yes: {answers[0]}", f"no: {answers[1]}"])
    for x, y, title, words in QUESTIONS.values():
        _box(axes, x, y, title, words, SKY)
    for name, (x, words) in LIMITS.items():
        _box(axes, x, 0.5, name, words, ORANGE)
        describe(axes, name, [words])
    return picture


def _box(axes: Axes, x: float, y: float, title: str, words: str, colour: str) -> None:
    style = {"facecolor": "white", "edgecolor": colour, "lw": 1.6, "boxstyle": "round,pad=0.5"}
    bold = rf"$\bf{{{title.replace(' ', chr(92) + ' ')}}}$"
    look = {"ha": "center", "va": "center", "fontsize": 8.5, "color": DARK, "linespacing": 1.4}
    axes.text(x, y, f"{bold}\n{words}", bbox=style, **look)
