"""Primitives draw values, and the alt text has them."""

import numpy as np
import pytest

from course.charts.base import BLUE, ORANGE, Picture
from course.charts.primitives import bars, label, stack, strip, timeline


@pytest.fixture
def picture() -> Picture:
    return Picture(6, 3)


def test_bars_have_lengths_words_and_alt_text(picture: Picture) -> None:
    axes = picture.panel()
    bars(
        axes,
        ["amp", "none", "far"],
        [20, np.nan, 30],
        low=[18, 0, 29],
        high=[25, 0, 31],
        unit=" ms",
    )
    label(axes, "a step", xlabel="ms")
    assert [bar.get_width() for bar in axes.patches] == pytest.approx([20, np.nan, 30], nan_ok=True)
    assert [text.get_text() for text in axes.texts] == ["20 ms", "30 ms"]
    assert axes.texts[0].xy == (25, 0)  # beyond its interval
    assert picture.alt == "a step; ms; amp: 20 ms, far: 30 ms"


def test_stacks_add_up(picture: Picture) -> None:
    axes = picture.panel()
    stack(axes, ["eager", "fused"], {"load": [1, 1], "rest": [9, 0]}, inside="{share:.0%}")
    ends = [bar.get_x() + bar.get_width() for bar in axes.containers[1]]
    assert ends == [10, 1]
    assert [text.get_text() for text in axes.texts] == ["10%", "100%", "90%", "10", "1"]
    assert picture.alt == "load: eager: 1, fused: 1; rest: eager: 9; total: eager: 10, fused: 1"


def test_rows_of_cells_and_lanes_go_from_top_to_bottom(picture: Picture) -> None:
    cells, lanes = picture.panels(1, 2)
    strip(cells, {"fp16": [(BLUE, "s"), (ORANGE, "e")], "bf16": [(BLUE, "s")]}, words=["1 + 1"])
    timeline(lanes, {"host": [(0, 2, BLUE, "ask")], "device": [(1, 3, ORANGE, "compute")]})
    for axes, names in ((cells, ["fp16", "bf16"]), (lanes, ["host", "device"])):
        assert [text.get_text() for text in axes.get_yticklabels()] == names
        assert axes.yaxis_inverted()
    assert len(cells.patches) == 3
    assert picture.alt == "fp16: 1 + 1; bf16: s; host: ask; device: compute"
    assert picture._repr_png_()
