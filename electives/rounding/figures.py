"""Figures of small updates, and of products in fp8."""

from __future__ import annotations

import pandas as pd

from course.charts import (
    ACCENT,
    BLUE,
    DARK,
    ORANGE,
    SKY,
    Picture,
    bars,
    label,
    legend,
    limit,
    lines,
)
from electives.rounding.measurements import METHODS as FP8_METHODS
from electives.rounding.updates import METHODS

METHOD_COLOURS = dict(zip(METHODS, (ACCENT, BLUE, ORANGE, DARK)))


def plot_weights(tables: dict[str, pd.DataFrame], xlabel: str, ylabel: str) -> Picture:
    """Draw a curve for each method of storing weights, and a panel for each table.

    Args:
        tables: from `accumulate_updates` or `train_in_bf16`, by title.
    """
    picture = Picture(10, 3.5)
    for axes, (title, table) in zip(picture.panels(1, len(tables), sharey=True), tables.items()):
        curves = {method: (table.index, table[method]) for method in table}
        # The fp32 master may cover other curves.
        styles = ["--" if method == "fp32 master" else "-" for method in table]
        lines(axes, curves, colours=[METHOD_COLOURS[method] for method in table], styles=styles)
        label(axes, title, size=10, xlabel=xlabel)
    picture.axes[0].set_ylabel(ylabel)
    legend(picture, 4)
    return picture


def plot_fp8_speedup(products: pd.DataFrame) -> Picture:
    """Draw how many times as fast as bf16 each product of `load_products` was."""
    picture = Picture(10, 4.6)
    axes = picture.panel()
    names = [f"{row.Index}: {row.k:,} → {row.n:,}" for row in products.itertuples()]
    bars(axes, names, {method: products[method] for method in FP8_METHODS}, colours=(SKY, BLUE))
    limit(axes, 1, "bf16", along="x")
    machine = products["machine"].iloc[0]
    label(axes, machine, size=10, xlabel="times as fast as bf16 (inputs → outputs of a layer)")
    legend(picture)
    return picture
