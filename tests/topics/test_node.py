"""Eight GPUs of a node: predicted from recorded runs, and beside a node's where there is one."""

import json
import shutil
import statistics
from pathlib import Path

import pandas as pd
import pytest
from node_helpers import COPIED, copied_node

from course.runs import recordings
from course.runs import run as runs
from course.topics.communication import report
from course.topics.scaling import beside_prediction, efficiency, node, pictures, prediction
from course.topics.scaling.ring import all_reduce_s

MACHINES = node.written()["fitted_to"]


def again(**others: list[str]) -> pd.DataFrame:
    """What is predicted of the runs that the file names, or of others of some machine."""
    said = node.written()
    return prediction.fitted(said["fitted_to"] | others, said["replaced_run"])


@pytest.fixture(scope="module")
def predicted() -> pd.DataFrame:
    return again().set_index("rung")


@pytest.fixture
def recorded_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copied_node(tmp_path / "recorded", monkeypatch)


def step_s(machine: str, rung: str, gpus: int, each: int = 256) -> float:
    """As it was recorded, whatever for."""
    (found,) = (
        run.record.step_s
        for run in recordings.recorded_runs(machine, "scaling", "sharding", "throughput")
        if run.config.rung == rung
        and run.config.precision == "bf16"
        and run.config.device == "auto"
        and (run.record.gpus, run.config.batch_size) == (gpus, gpus * each)
    )
    return found


def test_what_was_predicted_before_a_node_was_had(predicted: pd.DataFrame) -> None:
    """Of the runs that it names, the file says what the function does, to six digits."""
    said, written = node.written(), node.predicted().set_index("rung")
    assert (said["date"], said["gpus"], said["images_each"]) == ("2026-11-25", 8, 256)
    pd.testing.assert_frame_equal(written, predicted, check_like=True, rtol=1e-5)


def test_what_is_recorded_later_changes_no_prediction(
    predicted: pd.DataFrame, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every machine is recorded anew, and steps take twice as long then."""
    shutil.copytree(recordings.RECORDED, tmp_path / "recorded")
    for run in (run for each in MACHINES for run in recordings.recorded_runs(each)):
        place = tmp_path / "recorded" / run.folder.parent.name / f"{run.name}-anew"
        shutil.copytree(run.folder, place)
        saved = json.loads((place / "record.json").read_text())
        saved["step_s"] = 2 * (saved["step_s"] or 1.0)
        (place / "record.json").write_text(json.dumps(saved | {"started_at": "2027-01-01"}))
    for module in (recordings, runs):
        monkeypatch.setattr(module, "RECORDED", tmp_path / "recorded")
    pd.testing.assert_frame_equal(again().set_index("rung"), predicted)


def test_a_run_that_is_gone_is_named() -> None:
    with pytest.raises(ValueError, match="nvidia-h200-x2: resnet50-0 is not recorded"):
        again(**{"nvidia-h200-x2": ["resnet50-0"]})


@pytest.mark.parametrize("rung", prediction.SCALED)
def test_a_step_is_one_gpus_and_what_several_add(predicted: pd.DataFrame, rung: str) -> None:
    said, alone_s = predicted.loc[rung], step_s(prediction.FITTED, rung, 1)
    longer = [step_s(prediction.FITTED, rung, gpus) - alone_s for gpus in (2, 4)]
    if rung == "channels_last":
        longer.append(step_s(prediction.OTHER_HOST, "resnet50-ddp", 2) - alone_s)
    own_s = statistics.median(longer) - 0.00012  # of which 0.1 ms is exposed
    assert said["own_ms"] == pytest.approx(1e3 * own_s, abs=0.05)
    assert said["own_ms_low"] < 1e3 * min(longer) and said["own_ms_high"] > 1e3 * max(longer) - 0.1
    on_eight = alone_s + 1e-3 * (said["own_ms"] + said["exposed_ms"])
    assert said["efficiency"] == pytest.approx(alone_s / on_eight)
    assert said["images_per_s"] == pytest.approx(8 * 256 / on_eight)


def test_little_is_exposed_between_eight_gpus(predicted: pd.DataFrame) -> None:
    """The last bucket, all of which is sent after backward; it is full only then."""
    traced = [
        run for gpus in (2, 4) for run in report.recorded_runs(prediction.FITTED, gpus).values()
    ]
    fitted = efficiency.fit(efficiency.recorded_runs(prediction.FITTED), report.messages(traced))
    last = efficiency.sent_by("resnet50", 1000, 224, 25.0)[-1]
    wanted_ms = 1e3 * all_reduce_s(last.size, 8, fitted.link)
    assert predicted["exposed_ms"].tolist() == pytest.approx([wanted_ms] * 3)


def test_the_algebra_is_as_many_times_faster_as_other_rungs_are(predicted: pd.DataFrame) -> None:
    ladders = [recordings.ladders(name)["GPU"] for name in (prediction.OLDER, prediction.ALONE)]
    both = [key for key in ladders[0] if key in ladders[1] and key[0] != "algebra"]
    faster = [ladders[1][key].images_per_s / ladders[0][key].images_per_s for key in both]
    alone = node.written()["replaced_run"]["images_per_s"]
    said = predicted.loc["algebra"]
    assert len(both) >= 8
    assert said["alone_images_per_s"] == pytest.approx(alone * statistics.median(faster))
    assert said["alone_images_per_s_low"] == pytest.approx(alone * min(faster))
    assert said["alone_images_per_s_high"] == pytest.approx(alone * max(faster))
    assert said["own_ms"] == predicted.loc["channels_last", "own_ms"]
    assert said["own_ms_high"] == predicted["own_ms_high"].max()


def test_intervals_hold_what_they_are_about(predicted: pd.DataFrame) -> None:
    for name in ("alone_images_per_s", "own_ms", "images_per_s", "efficiency"):
        value, low, high = (predicted[name + end] for end in ("", "_low", "_high"))
        assert (low <= value).all() and (value <= high).all()


def test_nothing_is_drawn_where_no_node_is_recorded() -> None:
    assert node.measured("abacus").empty and beside_prediction("compile", "abacus").empty
    runs = efficiency.recorded_runs(prediction.FITTED, "compile")
    table = efficiency.scaling(runs)
    (shares, *_) = drawn = pictures.measured(table, beside_prediction("compile", "abacus")).axes
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
    table = efficiency.scaling(efficiency.recorded_runs(prediction.FITTED, "compile"))
    picture = pictures.measured(table, rows)
    assert [*picture.axes[0].get_xticks()] == [1, 2, 4, 8]
    assert "predicted, with its interval" in picture.axes[0].get_legend_handles_labels()[1]
    assert COPIED in picture.get_suptitle()
