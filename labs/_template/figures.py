"""Figures of this lab. A figure's name begins with `plot_`; it draws with `course.charts`."""

from __future__ import annotations

from collections.abc import Mapping

from course.charts import Picture, bars


def plot_doubles(values: Mapping[str, float]) -> Picture:
    """Draw each value as a bar.

    Args:
        values: numbers by name.
    """
    text = "; ".join(f"{name}: {value:g}" for name, value in values.items())
    picture = Picture(6, 2, f"Doubled values. {text}")
    bars(picture.panel(), [*values], [*values.values()])
    return picture
