"""A picture of the Tensor Core report: where the GPU's time went, and what could have gone."""

from __future__ import annotations

import pandas as pd

from course.charts.base import ACCENT, DARK, GREEN, GREY, ORANGE, Picture
from course.charts.primitives import label, legend, stack

# Part of the time, what it means, colour.
PARTS = (
    ("tensor_core", "in Tensor Core kernels", GREEN),
    ("eligible", "eligible operator, other kernel", ORANGE),
    ("layout", "eligible operator, layout rewritten", ACCENT),
    ("not_eligible", "not eligible", GREY),
    ("unknown", "unknown", DARK),
)


def plot_tensor_cores(table: pd.DataFrame, machine: str = "", top: int = 10) -> Picture:
    """Stacked bars of GPU time in milliseconds: used, eligible but not, not eligible, unknown.

    Args:
        table: of `tensor_core_report` (a bar an operator) or `tensor_core_summary` (one a trace).
        machine: where it was measured; a report knows it by itself.
        top: how many operators; the others together make one more bar.
    """
    parts = _parts(table, top)
    picture = Picture(9.5, 1.6 + 0.34 * len(parts))
    axes = picture.panel()
    totals = parts.sum(axis=1)
    words = [f"{share:.0%} on Tensor Cores" for share in parts["tensor_core"] / totals]
    colours = {name: colour for _, name, colour in PARTS}
    lengths = {name: parts[column] * 1e3 for column, name, _ in PARTS}
    stack(axes, list(parts.index), lengths, words=words, colours=colours, room=1.22)
    title = machine or table.attrs.get("device", "")
    label(axes, title, size=10, xlabel="milliseconds of GPU time in the whole trace")
    legend(picture, 3)
    return picture


def _parts(table: pd.DataFrame, top: int) -> pd.DataFrame:
    """Seconds in the columns of `PARTS`, a row a bar, its label the index.

    Raises:
        ValueError: a table of a CPU run, which has no GPU time.
    """
    if "gpu_s" not in table:
        raise ValueError("this table has no GPU time to draw: print(describe(table)) says why")
    if "tensor_core_share" in table and "name" in table:
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
    rest = parts.iloc[top:]
    if rest.empty:
        return parts
    label = f"{len(rest)} others"
    return pd.concat([parts.head(top), rest.sum().rename(label).to_frame().T])
