"""Pictures of who keeps what, and of gathering beside computing."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.patches import Patch

from course.charts.base import (
    ACCENT,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PHASE_COLOURS,
    PURPLE,
    SKY,
    Picture,
    clean,
    stacked_bar,
)
from course.runs.record import PHASES
from course.text import digits
from course.topics.communication.report import computing
from course.topics.sharding.measured import ENOUGH, SMALLER
from course.traces import tables
from course.traces.spans import Spans, stretches
from course.traces.tables import Trace

KINDS = {
    "weights": BLUE,
    "gradients": ORANGE,
    "optimizer": GREEN,
    "gathered": PURPLE,
    "activations": SKY,
    "other": GREY,
}
SENT = {"all_gather": PURPLE, "reduce_scatter": ORANGE, "all_reduce": ACCENT}
NAMES = ["ZeRO-0 (DDP)", "ZeRO-1", "ZeRO-2", "ZeRO-3"]


def kept(table: pd.DataFrame, unit: str = "GiB") -> Picture:
    """Stacked bars of what each rank keeps.

    Args:
        table: of `formula.kept` (columns stage, kind, gib), or `measured.kept` (run, kind, mib).
    """
    name, kind, value = table.columns
    wide = table.pivot_table(value, name, kind, sort=False)
    labels = [NAMES[each] if name == "stage" else str(each) for each in wide.index]
    return _stacked(wide, labels, f"{'MiB' if value == 'mib' else unit} that each rank keeps")


def shares(table: pd.DataFrame) -> Picture:
    """Stacked bars of predicted peaks, and what holds them.

    Args:
        table: a row a way, its index; columns as those of `predicted.Share`.
    """
    wide = table.drop(columns="peak_gib").rename(columns=lambda name: name.removesuffix("_gib"))
    return _stacked(wide, list(wide.index), "GiB of a rank at its peak, predicted")


def _stacked(wide: pd.DataFrame, labels: list[str], title: str) -> Picture:
    picture = Picture(9, 1.2 + 0.45 * len(wide))
    axes, kinds = picture.add_subplot(), [kind for kind in KINDS if kind in wide]
    for place, sizes in enumerate(wide[kinds].to_numpy()):
        parts = [(kind, size, KINDS[kind], "") for kind, size in zip(kinds, sizes)]
        end = stacked_bar(axes, place, parts, height=0.6)
        axes.text(end, place, f" {digits(end)}", va="center", fontsize=9)
    axes.set_yticks(range(len(wide)), labels)
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_title(title, loc="left", fontsize=10)
    axes.legend(
        frameon=False, fontsize=9, ncols=len(kinds), loc="upper center", bbox_to_anchor=(0.5, -0.16)
    )
    clean(axes)
    return picture


def timeline(trace: Trace) -> Picture:
    """The first traced step: computing by phase above, all-gathers and reduce-scatters below.

    Raises:
        ValueError: no collective is in it.
    """
    sent = trace.collectives
    sent = sent[sent["step"] >= 0] if len(sent) else sent
    if sent.empty:
        raise ValueError(f"{trace.source} has no collective in it: launch with gpus=2 or more")
    number = sent["step"].min()
    row = tables.steps(trace).set_index("step").loc[number]
    rows = sent[sent["step"] == number]
    start = row["start_s"]
    end = max(row["end_s"], (rows["start_s"] + rows["duration_s"]).max())
    kinds = [kind for kind in SENT if kind in set(rows["operation"])]
    picture = Picture(10, 1.8 + 0.4 * (1 + len(kinds)))
    axes = picture.add_subplot()
    for phase in PHASES:
        _bars(axes, computing(trace, phase), 0, PHASE_COLOURS[phase], start, end)
    for place, kind in enumerate(kinds, 1):
        of_kind = stretches(rows[rows["operation"] == kind])
        _bars(axes, of_kind, place, SENT[kind], start, end)
    axes.set_yticks(range(1 + len(kinds)), ["computing", *(k.replace("_", "-") for k in kinds)])
    axes.set_ylim(0.6 + len(kinds), -0.6)
    axes.set_xlim(0, (end - start) * 1e3)
    axes.set_xlabel("milliseconds since the step began on the host", fontsize=9)
    title = f"step {number}: {trace.device or 'CPU'}{trace.recorded}"
    axes.set_title(title, loc="left", fontsize=10)
    handles = [Patch(color=PHASE_COLOURS[name], label=name) for name in PHASES]
    axes.legend(
        handles=handles,
        frameon=False,
        fontsize=9,
        ncols=len(handles),
        loc="upper center",
        bbox_to_anchor=(0.46, -0.28),
    )
    clean(axes)
    return picture


def _bars(axes: Axes, spans: Spans, place: int, colour: str, start: float, end: float) -> None:
    inside = [(max(begin, start), min(stop, end)) for begin, stop in spans]
    bars = [((begin - start) * 1e3, (stop - begin) * 1e3) for begin, stop in inside if stop > begin]
    axes.broken_barh(bars, (place - 0.35, 0.7), color=colour, lw=0)


def ways(table: pd.DataFrame, title: str = "") -> Picture:
    """Images/s over peak memory: each way a point; green is what the lab asks for.

    Args:
        table: what `measured.ways` returned.
    """
    picture = Picture(9, 4.2)
    axes = picture.add_subplot()
    shown = table[table["images_per_s"].notna()]
    shown = shown.sort_values("images_per_s", ascending=False)
    line, below = 0.045 * shown["images_per_s"].max(), float("inf")
    for name, row in shown.iterrows():
        colour = GREEN if row["reached"] else BLUE
        axes.plot(row["peak_gib"], row["images_per_s"], "o", color=colour)
        below = min(row["images_per_s"], below - line)  # no name lies on another
        axes.annotate(
            f"  {name}",
            (row["peak_gib"], row["images_per_s"]),
            (row["peak_gib"], below),
            fontsize=8,
            va="center",
        )
    if "ddp" in shown.index:
        at = shown.loc["ddp"]
        peak, rate = SMALLER * at["peak_gib"], ENOUGH * at["images_per_s"]
        axes.plot(
            [0.8 * peak, peak, peak], [rate, rate, 1.1 * at["images_per_s"]], "--", color=GREY, lw=1
        )
    axes.margins(x=0.15)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("peak GiB of a GPU", fontsize=9)
    axes.set_ylabel("images/s of all", fontsize=9)
    axes.set_title(title, loc="left", fontsize=10)
    clean(axes)
    return picture
