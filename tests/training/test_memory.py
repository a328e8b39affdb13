"""Memory: the peak, errors that mean "out of memory", and predictions of recorded peaks."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import torch
from job_helpers import run_forked

from course.config import GIB, rung
from course.runs.recordings import recorded
from course.training import memory
from course.training.memory_prediction import predict
from labs.day1_1_gpu import peaks
from labs.day1_1_gpu.figures import plot_predicted_peaks

CPU = torch.device("cpu")
H100 = "nvidia-h100"
SMALL = {"model": "resnet18", "image_px": 64, "batch_size": 16, "data": "synthetic"}


def test_the_peak_contains_what_the_process_allocated() -> None:
    before = memory.peak(CPU)
    tensor = torch.ones(int(0.25 * GIB) // 4)
    after = memory.peak(CPU)
    assert before["memory_kind"] == "process, resident"
    assert after["peak_gib"] >= tensor.nbytes / GIB
    assert before["peak_gib"] <= after["peak_gib"] < 1024  # GiB, not KiB


def test_out_of_memory_is_recognised() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60, dtype=torch.uint8)
    for problem in (error.value, MemoryError(), torch.OutOfMemoryError()):
        assert memory.is_out_of_memory(problem)
    assert not memory.is_out_of_memory(RuntimeError("shapes do not match"))


FAULTS = """
import resource, sys, torch
from course.training import memory
if sys.argv[1] == "keeps":
    memory.keep_freed()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(2**24).sum()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(faults())
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux uses glibc's allocator")
def test_freed_memory_is_reused(tmp_path: Path) -> None:
    (script := tmp_path / "faults.py").write_text(FAULTS)
    keeps = subprocess.run([sys.executable, script, "keeps"], capture_output=True, check=True)
    default = run_forked(script, "default", folder=tmp_path, env=dict(os.environ))
    assert default.returncode == 0, default.stderr
    assert 8 * int(keeps.stdout) < int(default.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size, measured_gib", [(64, 3.0), (256, 11.01), (1024, 43.0)])
def test_predictions_are_close_to_the_h100s_peaks(batch_size: int, measured_gib: float) -> None:
    config = rung("channels_last", data="synthetic", batch_size=batch_size)
    assert predict(config).peak_gib == pytest.approx(measured_gib, rel=0.05)


def test_cpus_are_not_predicted() -> None:
    with pytest.raises(ValueError, match="device='cpu'.*set device='auto'"):
        predict(rung("baseline"))
    table = recorded(H100)
    with pytest.raises(ValueError, match="none of these runs.*choose runs on a GPU"):
        peaks.compare_peaks(table[table["device"] == "cpu"])
    with pytest.raises(ValueError, match="still running: wait"):
        peaks.compare_peaks(table.head(2).assign(status="running"))


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


def row(name: str = "device", *, status: str = "ok", peak_gib: float = 0.5, **changes) -> dict:
    """A record of a small run on a GPU of 2 GiB."""
    return {
        "status": status,
        "peak_gib": peak_gib,
        "reserved_gib": 0.6,
        "machine": "a GPU",
        "memory_kind": "device allocator",
        "hardware": {"device_gib": 2.0},
        "config": asdict(rung(name, **SMALL | changes)),
    }


@pytest.mark.slow
def test_runs_are_predicted_with_their_own_settings() -> None:
    rows = [
        row(batch_size=32, status="oom", memory_gib=0.125),
        row(),
        row(),
        row(precision="tf32", peak_gib=0.25),
        row("amp"),
        row(status="failed"),
        row() | {"memory_kind": "process, resident"},
    ]
    table = peaks.compare_peaks(pd.DataFrame(rows))
    assert list(table["setting"]) == ["fp32", "fp32", "tf32", "half"]  # equal runs: one row
    assert list(table["batch_size"]) == [16, 32, 16, 16]
    assert list(table["limit_gib"]) == [2, 0.125, 2, 2]
    small, large, tf32, half = table["predicted_gib"]
    assert small == predict(rung("device", **SMALL)).peak_gib == tf32
    assert half < small < large
    errors = [small / 0.5 - 1, float("nan"), small / 0.25 - 1, half / 0.5 - 1]
    assert list(table["error"]) == pytest.approx(errors, nan_ok=True)
    for change in ({"momentum": 0.0}, {"data": "default"}):
        two = pd.DataFrame([row(channels_last=True), row(channels_last=True, **change)])
        assert peaks.compare_peaks(two)["predicted_gib"].nunique() == 2


def test_ignored_fields_do_not_change_a_prediction() -> None:
    changes = {name: 1 for name in peaks.IGNORED} | {
        "rung": "other",
        "data_root": "there",
        "warmup_steps": 9,
        "epochs": 3,
        "steps": 50,
        "profile_steps": 2,
        "memory_gib": 7,
        "uint8": False,
        "compile": "default",
        "fused": True,
    }
    assert set(changes) == peaks.IGNORED
    expected = predict(rung("device", **SMALL)).peak_gib
    assert predict(rung("device", **SMALL | changes)).peak_gib == expected


def test_a_missing_prediction_says_how_to_store_one(monkeypatch) -> None:
    assert peaks.median_error(pd.DataFrame({"error": [-0.3, 0.1, 0.2, float("nan")]})) == 0.2
    monkeypatch.setattr(peaks, "SAVED", "absent")
    with pytest.raises(
        ValueError, match=r"no prediction is saved.*save_predictions\('nvidia-h100'\)"
    ):
        peaks.recorded_peaks(H100)


def test_the_figure_marks_what_did_not_fit(predictions: pd.DataFrame) -> None:
    figure = plot_predicted_peaks(predictions)
    left, right = figure.axes
    assert "NVIDIA H100 80GB HBM3 (recorded 20" in figure.get_suptitle()
    names = [text.get_text() for text in figure.legends[0].get_texts()]
    assert names == list(dict.fromkeys(predictions["setting"]))
    crosses = [line for line in left.lines if line.get_marker() == "X" and len(line.get_xdata())]
    assert sum(len(line.get_xdata()) for line in crosses) == (predictions["status"] == "oom").sum()
    assert f"median {peaks.median_error(predictions):.1%}" in right.get_title(loc="left")
    oom = plot_predicted_peaks(predictions[predictions["status"] == "oom"])
    assert oom.axes[1].get_title(loc="left") == "error: none fitted"
