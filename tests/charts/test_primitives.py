"""Primitives draw values, and the alt text has them."""

import numpy as np
import pytest

from course.charts.base import BLUE, ORANGE, Picture
from course.charts.primitives import bars, label, legend, lines, scatter_fit, stack, strip, timeline


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


def test_pale_bars_and_words_for_missing_values(picture: Picture) -> None:
    axes = picture.panel()
    bars(axes, ["fp16", "fp8"], [20, np.nan], pale=[30, np.nan], missing="failed")
    assert [bar.get_width() for bar in axes.patches[::2]] == [30, 20]
    assert [text.xy[0] for text in axes.texts] == [30, 0]  # at the end of the longer bar
    assert picture.alt == "fp16: 20, fp8: failed"


def test_groups_of_bars_do_not_cover_each_other(picture: Picture) -> None:
    axes = picture.panel()
    bars(axes, ["64", "96"], {"cold": [1, 2], "warm": [3, 4]}, upright=True)
    legend(picture)
    spans = sorted((bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches)
    assert all(one[1] <= other[0] for one, other in zip(spans, spans[1:]))
    assert [text.get_text() for text in picture.legends[0].get_texts()] == ["cold", "warm"]
    assert picture.alt == "cold: 64: 1, 96: 2; warm: 64: 3, 96: 4"


def test_stacks_add_up(picture: Picture) -> None:
    axes = picture.panel()
    stack(axes, ["eager", "fused"], {"load": [1, 1], "rest": [9, 0]}, inside="{share:.0%}")
    ends = [bar.get_x() + bar.get_width() for bar in axes.containers[1]]
    assert ends == [10, 1]
    assert [text.get_text() for text in axes.texts] == ["10%", "100%", "90%", "10", "1"]
    assert picture.alt == "load: eager: 1, fused: 1; rest: eager: 9; total: eager: 10, fused: 1"


def test_lines_and_points(picture: Picture) -> None:
    left, right = picture.panels(1, 2)
    lines(left, {"loss": ([0, 1, 2], [2.5, np.nan, 0.5])}, bands={"loss": ([2, 1, 0], [3, 2, 1])})
    scatter_fit(right, {"run": ([1, 2], [10, 20])}, {"line": ([0, 3], [0, 30])})
    assert [line.get_color() for line in right.lines] == [BLUE, BLUE]  # points and their fit
    assert picture.alt == "loss: from 2.5 to 0.5; run: 1: 10, 2: 20"
    lines(right, {"loss": ([0, 1], [2.5, 0.5])})  # as in the other panel
    assert picture.alt.endswith("run: 1: 10, 2: 20; loss: from 2.5 to 0.5")


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
