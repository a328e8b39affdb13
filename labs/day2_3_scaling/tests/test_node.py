"""Eight GPUs of a node: predicted from recorded runs, and beside a node's where there is one."""

from pathlib import Path

import pytest
from node_helpers import COPIED, copied_node

from labs.day2_3_scaling import efficiency, node
from labs.day2_3_scaling import figures as pictures
from labs.day2_3_scaling.node import beside_prediction

FOUR = "nvidia-h200-x4"


@pytest.fixture
def recorded_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied_node(tmp_path / "recordings", monkeypatch)


def test_intervals_hold_what_they_are_about() -> None:
    predicted = node.predicted()
    for name in ("alone_images_per_s", "own_ms", "images_per_s", "efficiency"):
        value, low, high = (predicted[name + end] for end in ("", "_low", "_high"))
        assert (low <= value).all() and (value <= high).all()


def test_nothing_is_drawn_where_no_node_is_recorded() -> None:
    assert node.measured("abacus").empty and beside_prediction("compile", "abacus").empty
    runs = efficiency.recorded_runs(FOUR, "compile")
    table = efficiency.scaling(runs)
    (shares, *_) = drawn = pictures.plot_measured(
        table, beside_prediction("compile", "abacus")
    ).axes
    assert [*shares.get_xticks()] == [1, 2, 4]
    assert not any(
        "predicted" in text for axes in drawn for text in axes.get_legend_handles_labels()[1]
    )


def test_a_recorded_node_stands_beside_its_prediction(recorded_node: None) -> None:
    assert node.measured()["rung"].tolist() == ["channels_last", "compile", "algebra"]
    assert node.measured(purpose="feeding")["rung"].tolist() == ["compile-gpu_decode"]
    rows = beside_prediction("compile")
    assert len(rows) == 1 and rows["machine"][0] == COPIED
    assert rows["efficiency"][0] == pytest.approx(0.948, abs=0.001)  # that of four, copied
    assert rows["predicted_efficiency_low"][0] < 0.948 < rows["predicted_efficiency_high"][0]
    table = efficiency.scaling(efficiency.recorded_runs(FOUR, "compile"))
    picture = pictures.plot_measured(table, rows)
    assert [*picture.axes[0].get_xticks()] == [1, 2, 4, 8]
    assert "predicted, with its interval" in picture.axes[0].get_legend_handles_labels()[1]
    assert COPIED in picture.get_suptitle()
