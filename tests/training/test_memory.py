"""Predictions of recorded peaks."""

import pandas as pd
import pytest

from course.runs.recordings import recorded
from labs.memory import peaks

H100 = "nvidia-h100"


@pytest.fixture(scope="module")
def predictions() -> pd.DataFrame:
    return peaks.recorded_peaks(H100)


def test_every_recorded_run_is_predicted_within_a_few_per_cent(predictions: pd.DataFrame) -> None:
    assert peaks.median_error(predictions) <= 0.05
    ok = predictions[predictions["status"] == "ok"]
    assert ok["error"].abs().max() < 0.06 and ok["error"].notna().all()
    assert {"fp32", "tf32", "fp16", "bf16", "bf16, channels_last"} <= set(ok["setting"])
    table, columns = recorded(H100), ["batch_size", "precision", "channels_last", "status"]
    table = table[table["device"] != "cpu"]
    rows = [set(map(tuple, t[columns].to_numpy())) for t in (table, predictions)]
    assert rows[0] == rows[1]


def test_runs_that_did_not_fit_are_predicted_not_to_fit(predictions: pd.DataFrame) -> None:
    oom = predictions[predictions["status"] == "oom"]
    assert set(oom["batch_size"]) == {1024, 2048} and oom["measured_gib"].isna().all()
    assert (oom["predicted_gib"] > oom["limit_gib"]).all() and set(oom["limit_gib"]) == {79.2}
    assert peaks.fit_predicted_correctly(predictions).all()
    wrong = predictions.assign(predicted_gib=80.0)
    assert list(peaks.fit_predicted_correctly(wrong)) == list(wrong["status"] == "oom")


@pytest.mark.slow
def test_a_stored_prediction_is_todays_prediction(predictions: pd.DataFrame) -> None:
    fields = {"rung": "amp", "precision": "fp16", "batch_size": 256}
    table = recorded(H100)
    (today,) = peaks.compare_peaks(table[(table[list(fields)] == fields).all(axis=1)])[
        "predicted_gib"
    ]
    same = predictions["precision"].eq("fp16") & predictions["batch_size"].eq(256)
    stored = predictions[same & ~predictions["channels_last"]]["predicted_gib"].iloc[0]
    assert today == pytest.approx(stored, rel=0.005)
