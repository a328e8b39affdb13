"""Batch sweeps: the line through recorded runs, and their figure."""

import pandas as pd
import pytest

from course.runs.recordings import recorded
from labs.memory.batch_sweep import Fit, fit, sweep
from labs.memory.figures import plot_batch_sweep


def recorded_sweep() -> pd.DataFrame:
    """Return batches 64 to 1024, and 2048, which did not fit."""
    table = recorded("nvidia-h100")
    return sweep(table[(table["rung"] == "channels_last") & (table["precision"] == "bf16")])


def words(table: pd.DataFrame, **options: float) -> str:
    """Return the text of the figure."""
    picture = plot_batch_sweep(table, **options)
    texts = [text for axes in picture.axes for text in axes.texts]
    texts += [text for axes in picture.axes if (box := axes.get_legend()) for text in box.texts]
    return "\n".join(text.get_text() for text in texts)


def test_recorded_sweep_is_a_line() -> None:
    table = recorded_sweep()
    assert list(table["batch_size"]) == [64, 128, 256, 512, 1024, 2048]
    assert list(table["status"]) == ["ok"] * 5 + ["oom"]
    line = fit(table)
    assert line.largest_error < 0.01 and line.sizes == 5
    assert 0.2 < line.fixed_gib < 0.5  # weights, momentum and bf16 copies are 0.24
    assert line.peak_gib(1024) == pytest.approx(43.57, rel=0.01)
    text = words(table, limit_gib=79.2)
    for expected in (
        "out of memory at 2048",
        "limit: 79.2 GiB, enough for batch 18",
        "does not grow: 0.34 GiB",
        "grows: 43.2 MiB per image",
    ):
        assert expected in text


def test_largest_batch_is_the_last_within_the_limit() -> None:
    line = Fit(fixed_gib=1.0, per_image_gib=0.5, largest_error=0.0, sizes=3)
    assert [line.largest_batch(gib) for gib in (0.5, 1.4, 1.5, 3.4, 3.5)] == [0, 0, 1, 4, 5]
