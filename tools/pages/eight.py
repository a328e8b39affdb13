"""What docs/performance.md shows of a node of eight GPUs: predicted, measured, published."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from course.runs import recordings
from course.runs.run import PROJECT
from course.text import digits
from course.topics.scaling import node
from tools.pages.markdown import markdown

HEAD = (
    "on eight GPUs",
    "one GPU alone, images/s",
    "predicted: images/s",
    "efficiency",
    "measured: images/s",
    "efficiency",
    "W, all GPUs",
    "J/image",
)
NONE = "–"
FILE = f"../{node.PREDICTED.relative_to(PROJECT).as_posix()}"


def table(machine: str = node.NODE) -> str:
    """The prediction for each rung beside what was measured, and published nodes, in Markdown.

    What was not measured is a dash; rungs fed from files were not predicted.
    """
    said, known = node.predicted().set_index("rung"), node.measured(machine)
    fed = node.measured(machine, "feeding")
    found = {row.rung: row for each in (known, fed) for row in each.itertuples()}
    rows = []
    for name in dict.fromkeys([*said.index, *found]):
        ahead = [NONE] * 3
        if name in said.index:
            row = said.loc[name]
            speeds = [
                _span(row, each, 1, digits) for each in ("alone_images_per_s", "images_per_s")
            ]
            ahead = [*speeds, _span(row, "efficiency", 100, _percent)]
        rows.append([name, *ahead, *_measured(found.get(name))])
    for each in node.PUBLISHED:
        shown = f"[{each.what}]({each.source}), {each.gpus}, a training to 75.9 %"
        rows.append([shown, *[NONE] * 3, digits(each.images_per_s), *[NONE] * 3])
    return markdown(HEAD, rows, source=_source(machine))


def _span(row: pd.Series, name: str, unit: int, shown: Callable[[float], str]) -> str:
    """A value, and the ends of its interval in brackets."""
    value, low, high = (shown(row[name + end] * unit) for end in ("", "_low", "_high"))
    return value if low == high else f"{value} ({low} to {high})"


def _percent(value: float) -> str:
    return f"{value:.1f}%"


def _measured(row: Any) -> list[str]:
    if row is None:
        return [NONE] * 4
    share = _percent(row.efficiency * 100)
    cells = [digits(row.images_per_s), share, f"{row.watts:,.0f}", f"{row.joules_per_image:.3f}"]
    return [NONE if "nan" in cell else cell for cell in cells]


def _source(machine: str) -> str:
    said = node.written()
    *others, last = said["fitted_to"]
    told = [
        f"ResNet-50, bf16, 224 px, {said['images_each']} images of each GPU; predicted on "
        f"{said['date']} for {said['device']} from runs on {', '.join(others)} and {last} "
        f"([the file]({FILE}))"
    ]
    if machine in recordings.machines():
        index = recordings.load(machine)
        told.append(
            f"Measured: {index['machine']}, {recordings.origin(index)}, by `{index['command']}`"
        )
    return ". ".join(told) + "."
