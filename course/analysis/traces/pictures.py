"""Pictures of a profiler's trace: one step on a timeline, and what takes the time."""

from __future__ import annotations

import re

import pandas as pd

from course.analysis.traces.tables import Trace, by_operator, steps
from course.charts.base import BLUE, GREY, ORANGE, PHASE_COLOURS, Picture
from course.charts.primitives import bars, label, legend
from course.charts.primitives import timeline as timeline_of
from course.runs.record import PHASES

LANES = 6  # of operators, on a CPU


def plot_timeline(trace: Trace, step: int | None = None) -> Picture:
    """One step: the host's phases and operators above the GPU's kernels and copies, by time.

    Args:
        trace: what `course.analysis.traces.tables.read` or `read_nsys` returned.
        step: the step's number; the last one whose phases are all in the trace by default.

    Raises:
        ValueError: a step that the trace does not hold, or a trace without times.
    """
    start, end, number = _window(trace, step)
    lanes = _lanes(trace, start, end)
    picture = Picture(10, 1.6 + 0.36 * len(lanes))
    axes = picture.panel()
    spans = {
        name: [
            ((row.start_s - start) * 1e3, row.duration_s * 1e3, _phase_colour(row.phase), "")
            for row in rows.itertuples()
        ]
        for name, rows, _ in lanes
    }
    timeline_of(axes, spans, heights=[height for *_, height in lanes])
    where = f"{trace.device or 'CPU'}, {trace.source}{trace.recorded}"
    label(
        axes,
        f"step {number}: {where}" if number >= 0 else f"whole trace: {where}",
        size=10,
        xlabel="milliseconds since the step began on the host",
        xlim=(0, (end - start) * 1e3),
    )
    drawn = set(pd.concat([rows["phase"] for _, rows, _ in lanes]))
    colours = {phase: PHASE_COLOURS[phase] for phase in PHASES if phase in drawn}
    legend(picture, 6, colours | ({"outside any phase": GREY} if drawn - set(PHASES) else {}))
    return picture


def _phase_colour(phase: str) -> str:
    return PHASE_COLOURS.get(phase, GREY)


def _window(trace: Trace, step: int | None) -> tuple[float, float, int]:
    """Begin and end in seconds, and the number, of the step to draw."""
    whole = steps(trace)
    if step is None and len(whole):
        step = int(whole["step"].max())
    if step is not None and step not in set(whole["step"]):
        known = ", ".join(map(str, whole["step"])) or "none"
        raise ValueError(f"step={step}: the trace holds these steps: {known}")
    spans = pd.concat([trace.operators, trace.kernels, trace.ranges])[["start_s", "duration_s"]]
    if spans["start_s"].notna().sum() == 0:
        raise ValueError(f"{trace.source} has no times, so no timeline: use time_by instead")
    if step is None:
        return spans["start_s"].min(), spans.sum(axis=1).max(), -1
    row = whole[whole["step"] == step].iloc[0]
    kernels = trace.kernels[trace.kernels["step"] == step]
    last = (kernels["start_s"] + kernels["duration_s"]).max()
    return row["start_s"], max(row["end_s"], last if pd.notna(last) else 0), step


def _lanes(trace: Trace, start: float, end: float) -> list[tuple[str, pd.DataFrame, float]]:
    """(label, rows with start_s, duration_s and phase, height of the bars), top to bottom."""
    phases = trace.ranges[trace.ranges["name"].isin(PHASES)]
    lanes = [("host: phase", phases.assign(phase=phases["name"]), 0.8)]
    if trace.kernels.empty:
        for name in by_operator(trace)["name"].head(LANES):
            lanes.append((_short(name), trace.operators[trace.operators["name"] == name], 0.62))
    else:
        outer = trace.operators[trace.operators["depth"] == 0]
        lanes.append(("host: operators", outer, 0.3))
        for stream, rows in trace.kernels.groupby("stream"):
            lanes.append((f"GPU: stream {stream:g}", rows, 0.8))
        lanes.append(("GPU: copies", trace.copies, 0.5))
    return [(name, _cut(rows, start, end), height) for name, rows, height in lanes]


def _cut(rows: pd.DataFrame, start: float, end: float) -> pd.DataFrame:
    """The rows, or what of them lies between two times; nothing narrower than a hairline."""
    begin = rows["start_s"].clip(lower=start)
    length = (rows["start_s"] + rows["duration_s"]).clip(upper=end) - begin
    rows = rows.assign(start_s=begin, duration_s=length)[["start_s", "duration_s", "phase"]]
    return rows[length > 0]


def plot_time_by(table: pd.DataFrame, top: int = 10) -> Picture:
    """What takes the time: horizontal bars with shares, the rest in one bar of its own.

    Args:
        table: of `course.analysis.traces.tables.by_kernel`, `by_operator` or `layout_kernels`.
        top: how many bars.
    """
    shown, rest = table.head(top), table.iloc[top:]
    on_cpu = "measured" in table and (table["measured"] == "CPU").any()
    names, colours = [_short(name) for name in shown["name"]], [ORANGE if on_cpu else BLUE]
    seconds, shares, colours = list(shown["seconds"]), list(shown["share"]), colours * len(shown)
    if rest["seconds"].sum() > 0:
        names.append(f"{len(rest)} others")
        seconds.append(rest["seconds"].sum())
        shares.append(rest["share"].sum())
        colours.append(GREY)
    picture = Picture(9, 1.0 + 0.32 * max(len(names), 1))
    axes = picture.panel()
    words = [f"{share:.1%}" for share in shares]
    bars(axes, names, [each * 1e3 for each in seconds], words=words, colours=colours, room=1.12)
    clock = "CPU, the operator's own time" if on_cpu else "GPU"
    label(axes, xlabel=f"milliseconds in the whole trace ({clock})")
    return picture


# Kernels that are a frame for any work: what the work is, stands in the template's arguments.
FRAMES = re.compile(r"(elementwise_kernel\w*|reduce_kernel|multi_tensor_apply_kernel|Kernel2?)$")
WORK = re.compile(r"cutlass_\w+|\w*Functor\w*|\w+_kernel_cuda|\w+_kernel_impl|launch_\w+|\w+Ops\b")


def _short(name: str, width: int = 56) -> str:
    """A kernel's bare name: no namespace, no template arguments but the one that tells its work.

    What is still longer than `width` is cut in its middle.
    """
    bare = re.sub(r"^void ", "", name).replace("(anonymous namespace)::", "")
    while bare != (fewer := re.sub(r"<[^<>]*>", "", bare)):
        bare = fewer
    bare = re.sub(r"[(<].*$", "", bare).strip() or name
    if name.startswith("void "):
        bare = bare.rsplit("::", 1)[-1]
    work = WORK.search(name, name.find("<")) if FRAMES.search(bare) else None
    if work:
        bare = f"{bare}: {work.group()}"
    return bare if len(bare) <= width else f"{bare[: width // 2]}…{bare[-width // 2 + 1 :]}"
