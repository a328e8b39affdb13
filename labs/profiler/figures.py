"""Plot a profiler's trace: one step on a timeline, what takes the time, and Tensor Cores."""

from __future__ import annotations

import pandas as pd

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    GREEN,
    GREY,
    ORANGE,
    PHASE_COLOURS,
    Picture,
    bars,
    label,
    legend,
    stack,
    timeline,
)
from trainspeed import traces
from trainspeed.phases import PHASES

CPU_LANES = 6  # operators on a CPU's timeline
MOST_BARS = 10
# Parts of the time in the Tensor Core picture: column, name in the legend, colour.
PARTS = (
    ("tensor_core", "in Tensor Core kernels", GREEN),
    ("eligible", "eligible operator, other kernel", ORANGE),
    ("layout", "eligible operator, layout rewritten", ACCENT),
    ("not_eligible", "not eligible", GREY),
    ("unknown", "unknown", DARK),
)


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


def plot_tensor_cores(table: pd.DataFrame, machine: str) -> Picture:
    """Plot GPU time in milliseconds as stacked bars: in Tensor Cores, eligible, not, unknown.

    Args:
        table: from `tensor_core_summary`; it draws a bar for each trace.
        machine: where it was measured.
    """
    shares = table.set_index("name")
    parts = {column: 1e3 * shares[f"{column}_share"] * shares["gpu_s"] for column, *_ in PARTS}
    parts["eligible"] -= parts["layout"]
    picture = Picture(9.5, 1.6 + 0.34 * len(table))
    axes = picture.panel()
    lengths = {name: parts[column] for column, name, _ in PARTS}
    colours = {name: colour for _, name, colour in PARTS}
    words = [f"{share:.0%} on Tensor Cores" for share in table["tensor_core_share"]]
    stack(axes, list(shares.index), lengths, words=words, colours=colours, room=1.22)
    label(axes, machine, size=10, xlabel="milliseconds of GPU time in the complete trace")
    legend(picture, 3)
    return picture
