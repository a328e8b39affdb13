"""Pictures of a profiler's trace: one step on a timeline, and what takes the time."""

from __future__ import annotations

import re

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course.charts.base import BLUE, DARK, GREY, ORANGE, PHASE_COLOURS, Picture, clean
from course.runs.record import PHASES
from course.traces.tables import Trace, by_operator, steps

LANES = 6  # of operators, on a CPU


def timeline(trace: Trace, step: int | None = None) -> Picture:
    """One step: the host's phases and operators above the GPU's kernels and copies, by time.

    Args:
        trace: what `course.traces.tables.read` or `read_nsys` returned.
        step: the step's number; the last one whose phases are all in the trace by default.

    Raises:
        ValueError: a step that the trace does not hold, or a trace without times.
    """
    start, end, number = _window(trace, step)
    lanes = _lanes(trace, start, end)
    picture = Picture(10, 1.6 + 0.36 * len(lanes))
    axes = picture.add_subplot()
    for place, (_, rows, height) in enumerate(lanes):
        for phase, group in rows.groupby("phase"):
            spans = zip((group["start_s"] - start) * 1e3, group["duration_s"] * 1e3)
            colour = PHASE_COLOURS.get(phase, GREY)
            axes.broken_barh(list(spans), (place - height / 2, height), color=colour, lw=0)
    axes.set_yticks(range(len(lanes)), [name for name, _, _ in lanes])
    axes.set_ylim(len(lanes) - 0.4, -0.6)
    axes.set_xlim(0, (end - start) * 1e3)
    where = trace.device or "CPU"
    axes.set_xlabel("milliseconds since the step began on the host", fontsize=9)
    title = f"step {number}" if number >= 0 else "whole trace"
    axes.set_title(f"{title}: {where}, {trace.source}{trace.recorded}", loc="left", fontsize=10)
    _legend(axes, pd.concat([rows["phase"] for _, rows, _ in lanes]))
    clean(axes)
    return picture


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


def _legend(axes: Axes, phases: pd.Series) -> None:
    shown = [phase for phase in PHASES if phase in set(phases)]
    handles = [Patch(color=PHASE_COLOURS[phase], label=phase) for phase in shown]
    if (~phases.isin(PHASES)).any():
        handles.append(Patch(color=GREY, label="outside any phase"))
    axes.legend(
        handles=handles,
        ncols=len(handles) or 1,
        frameon=False,
        fontsize=9,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.2),
    )


def time_by(table: pd.DataFrame, top: int = 10) -> Picture:
    """What takes the time: horizontal bars with shares, the rest in one bar of its own.

    Args:
        table: of `course.traces.tables.by_kernel`, `by_operator` or `layout_kernels`.
        top: how many bars.
    """
    shown = table.head(top)
    rest = table["seconds"].iloc[top:].sum()
    labels = [_short(name) for name in shown["name"]]
    seconds, shares = list(shown["seconds"] * 1e3), list(shown["share"])
    if rest > 0:
        labels.append(f"{len(table) - top} others")
        seconds.append(rest * 1e3)
        shares.append(table["share"].iloc[top:].sum())
    picture = Picture(9, 1.0 + 0.32 * max(len(labels), 1))
    axes = picture.add_subplot()
    on_cpu = "measured" in table and (table["measured"] == "CPU").any()
    colours = [ORANGE if on_cpu else BLUE] * len(shown) + [GREY] * (len(labels) - len(shown))
    axes.barh(range(len(labels)), seconds, color=colours, height=0.66)
    for place, (value, share) in enumerate(zip(seconds, shares)):
        axes.text(value, place, f" {share:.1%}", va="center", fontsize=9, color=DARK)
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlim(left=0)
    clock = "CPU, the operator's own time" if on_cpu else "GPU"
    axes.set_xlabel(f"milliseconds in the whole trace ({clock})")
    clean(axes)
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
