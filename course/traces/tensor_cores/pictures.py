"""A picture of the Tensor Core report: where the GPU's time went, and what could have gone."""

from __future__ import annotations

import pandas as pd

from course.charts.base import ACCENT, DARK, GREEN, GREY, ORANGE, Picture, clean

# Part of the time, what it means, colour.
PARTS = (
    ("tensor_core", "in Tensor Core kernels", GREEN),
    ("eligible", "eligible operator, other kernel", ORANGE),
    ("layout", "eligible operator, layout rewritten", ACCENT),
    ("not_eligible", "not eligible", GREY),
    ("unknown", "unknown", DARK),
)


def tensor_cores(table: pd.DataFrame, machine: str = "", top: int = 10) -> Picture:
    """Stacked bars of GPU time in milliseconds: used, eligible but not, not eligible, unknown.

    Args:
        table: of `tensor_core_report` (a bar an operator) or `tensor_core_summary` (one a trace).
        machine: where it was measured; a report knows it by itself.
        top: how many operators; the others together make one more bar.
    """
    parts = _parts(table, top)
    picture = Picture(9.5, 1.6 + 0.34 * len(parts))
    axes = picture.add_subplot()
    left = pd.Series(0.0, index=parts.index)
    for column, label, colour in PARTS:
        if parts[column].sum() > 0:
            width = parts[column] * 1e3
            axes.barh(range(len(parts)), width, left=left, color=colour, label=label, height=0.66)
            left = left + width
    for place, (total, used) in enumerate(zip(left, parts["tensor_core"] * 1e3)):
        share = f" {used / total:.0%} on Tensor Cores"
        axes.text(total, place, share, va="center", fontsize=9, color=DARK)
    axes.set_yticks(range(len(parts)), list(parts.index))
    axes.invert_yaxis()
    axes.set_xlim(0, left.max() * 1.22 if len(parts) else 1)
    axes.set_xlabel("milliseconds of GPU time in the whole trace", fontsize=9)
    axes.set_title(machine or table.attrs.get("device", ""), loc="left", fontsize=10)
    clean(axes)
    picture.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=9)
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
