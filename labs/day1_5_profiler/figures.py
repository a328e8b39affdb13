"""Plot a profiler's trace: one step on a timeline, what takes the time, and Tensor Cores."""

from __future__ import annotations

import re

import pandas as pd

from course.analysis.traces.tables import Trace, by_operator, steps
from course.charts.base import ACCENT, BLUE, DARK, GREEN, GREY, ORANGE, PHASE_COLOURS, Picture
from course.charts.primitives import bars, label, legend, stack, timeline
from course.runs.record import PHASES

CPU_LANES = 6  # operators on a CPU's timeline
# Parts of the time in the Tensor Core picture: column, name in the legend, colour.
PARTS = (
    ("tensor_core", "in Tensor Core kernels", GREEN),
    ("eligible", "eligible operator, other kernel", ORANGE),
    ("layout", "eligible operator, layout rewritten", ACCENT),
    ("not_eligible", "not eligible", GREY),
    ("unknown", "unknown", DARK),
)


def plot_timeline(trace: Trace, step: int | None = None) -> Picture:
    """Plot one step: the host's phases and operators above the GPU's kernels and copies.

    Args:
        trace: from `course.analysis.traces.tables.read` or `read_nsys`.
        step: the step's number; by default the last complete step.

    Raises:
        ValueError: the trace does not have the step, or has no times.
    """
    start, end, number = _window(trace, step)
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


def _window(trace: Trace, step: int | None) -> tuple[float, float, int]:
    """Return begin and end in seconds, and the number, of the step to plot."""
    complete = steps(trace).set_index("step")
    if step is None and len(complete):
        step = int(complete.index.max())
    if step is not None and step not in complete.index:
        known = ", ".join(map(str, complete.index)) or "none"
        raise ValueError(f"step={step}: expected a step that the trace has: {known}")
    spans = pd.concat([trace.operators, trace.kernels, trace.ranges])[["start_s", "duration_s"]]
    if spans["start_s"].isna().all():
        raise ValueError(f"{trace.source} has no times for a timeline: use plot_time_by instead")
    if step is None:
        return spans["start_s"].min(), spans.sum(axis=1).max(), -1
    kernels = trace.kernels[trace.kernels["step"] == step]
    ends = [complete.at[step, "end_s"], *(kernels["start_s"] + kernels["duration_s"])]
    return complete.at[step, "start_s"], max(ends), step


def _lanes(trace: Trace, start: float, end: float) -> list[tuple[str, pd.DataFrame, float]]:
    """Return lanes from top to bottom: label, rows between two times, height of the bars."""
    phases = trace.ranges[trace.ranges["name"].isin(PHASES)]
    lanes = [("host: phase", phases.assign(phase=phases["name"]), 0.8)]
    if trace.kernels.empty:
        for name in by_operator(trace)["name"].head(CPU_LANES):
            operators = trace.operators[trace.operators["name"] == name]
            lanes.append((_short_name(name), operators, 0.62))
    else:
        lanes.append(("host: operators", trace.operators[trace.operators["depth"] == 0], 0.3))
        for stream, rows in trace.kernels.groupby("stream"):
            lanes.append((f"GPU: stream {stream:g}", rows, 0.8))
        lanes.append(("GPU: copies", trace.copies, 0.5))
    return [(name, _clip(rows, start, end), height) for name, rows, height in lanes]


def _clip(rows: pd.DataFrame, start: float, end: float) -> pd.DataFrame:
    begin = rows["start_s"].clip(lower=start)
    length = (rows["start_s"] + rows["duration_s"]).clip(upper=end) - begin
    rows = rows.assign(start_s=begin, duration_s=length)[["start_s", "duration_s", "phase"]]
    return rows[length > 0]


def plot_time_by(table: pd.DataFrame, top: int = 10) -> Picture:
    """Plot what takes the time: bars with shares, and one bar for the rest.

    Args:
        table: from `course.analysis.traces.tables.by_kernel`, `by_operator` or `layout_kernels`.
        top: number of bars.
    """
    on_cpu = "measured" in table and (table["measured"] == "CPU").any()
    largest, others = table.head(top), table.iloc[top:]
    largest = largest.assign(name=largest["name"].map(_short_name))
    colours = [ORANGE if on_cpu else BLUE] * len(largest)
    if others["seconds"].sum() > 0:
        total = {"name": f"{len(others)} others", **others[["seconds", "share"]].sum()}
        largest = pd.concat([largest, pd.DataFrame([total])])
        colours.append(GREY)
    picture = Picture(9, 1.0 + 0.32 * max(len(largest), 1))
    axes = picture.panel()
    words = [f"{share:.1%}" for share in largest["share"]]
    bars(
        axes,
        list(largest["name"]),
        largest["seconds"] * 1e3,
        words=words,
        colours=colours,
        room=1.12,
    )
    clock = "CPU, without the operators inside" if on_cpu else "GPU"
    label(axes, xlabel=f"milliseconds in the complete trace ({clock})")
    return picture


# Kernels that are templates for any work: the template's arguments name the work.
TEMPLATES = re.compile(r"(elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel|Kernel2?)$")
WORK = re.compile(r"cutlass_\w+|\w*Functor\w*|\w+_kernel_cuda|\w+_kernel_impl|launch_\w+|\w+Ops\b")


def _short_name(name: str) -> str:
    """Remove namespace and template arguments from a kernel's name, except the name of its work.

    A long name is cut in its middle.
    """
    short = re.sub(r"^void ", "", name).replace("(anonymous namespace)::", "")
    while short != (fewer := re.sub(r"<[^<>]*>", "", short)):
        short = fewer
    short = re.sub(r"[(<].*$", "", short).strip() or name
    if name.startswith("void "):
        short = short.rsplit("::", 1)[-1]
    work = WORK.search(name, name.find("<")) if TEMPLATES.search(short) else None
    if work:
        short = f"{short}: {work.group()}"
    return short if len(short) <= 56 else f"{short[:28]}…{short[-27:]}"


def plot_tensor_cores(table: pd.DataFrame, machine: str = "", top: int = 10) -> Picture:
    """Plot GPU time in milliseconds as stacked bars: in Tensor Cores, eligible, not, unknown.

    Args:
        table: from `tensor_core_report` (a bar per operator) or `tensor_core_summary` (one per
            trace).
        machine: where it was measured; by default what the report has.
        top: number of operators; one more bar has the rest.
    """
    parts = _parts(table, top)
    picture = Picture(9.5, 1.6 + 0.34 * len(parts))
    axes = picture.panel()
    words = [f"{x:.0%} on Tensor Cores" for x in parts["tensor_core"] / parts.sum(axis=1)]
    colours = {name: colour for _, name, colour in PARTS}
    lengths = {name: parts[column] * 1e3 for column, name, _ in PARTS}
    stack(axes, list(parts.index), lengths, words=words, colours=colours, room=1.22)
    title = machine or table.attrs.get("device", "")
    label(axes, title, size=10, xlabel="milliseconds of GPU time in the complete trace")
    legend(picture, 3)
    return picture


def _parts(table: pd.DataFrame, top: int) -> pd.DataFrame:
    """Return seconds in the columns of `PARTS`, one row per bar, indexed by its label."""
    if "gpu_s" not in table:
        raise ValueError("this table has no GPU time to plot: print(describe(table)) explains why")
    if "name" in table:  # a summary
        shares = table.set_index("name")
        parts = {name: shares[f"{name}_share"] * shares["gpu_s"] for name, _, _ in PARTS}
        parts["eligible"] = parts["eligible"] - parts["layout"]
        return pd.DataFrame(parts).fillna(0.0)
    eligible = table["eligible"] == "yes"
    layout = table["layout_s"].where(eligible, 0.0)
    parts = pd.DataFrame(
        {
            "tensor_core": table["tensor_core_s"],
            "eligible": table["other_s"].where(eligible, 0.0) - layout,
            "layout": layout,
            "not_eligible": table["other_s"].where(~eligible, 0.0),
            "unknown": table["unknown_s"],
        }
    ).set_axis(table["operator"])
    others = parts.iloc[top:]
    if others.empty:
        return parts
    return pd.concat([parts.head(top), others.sum().rename(f"{len(others)} others").to_frame().T])
