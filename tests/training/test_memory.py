"""Memory: the peak, which errors mean that there is none left, and how well it is predicted."""

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import torch
from job_helpers import run_forked

from course.analysis import memory as peaks
from course.config import GIB, rung
from course.runs.recordings import recorded
from course.training import memory
from course.training.memory_prediction import predict
from labs.day1_1_gpu.figures import plot_predicted_peaks

CPU = torch.device("cpu")


def test_memory_peak_of_a_process_holds_what_it_allocated() -> None:
    before = memory.peak(CPU)
    held = torch.ones(int(0.25 * GIB) // 4)
    after = memory.peak(CPU)
    assert before["memory_kind"] == "process, resident"
    assert after["peak_gib"] >= held.nbytes / GIB
    assert before["peak_gib"] <= after["peak_gib"] < 1024  # GiB, not KiB


def test_out_of_memory_is_known_by_its_error() -> None:
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)
    assert memory.is_out_of_memory(caught.value)
    assert memory.is_out_of_memory(MemoryError())
    assert memory.is_out_of_memory(torch.OutOfMemoryError())
    assert not memory.is_out_of_memory(RuntimeError("shapes do not match"))


@pytest.mark.slow
@pytest.mark.parametrize("batch_size, measured_gib", [(64, 3.0), (256, 11.01), (1024, 43.0)])
def test_prediction_is_near_what_the_h100_measured(batch_size: int, measured_gib: float) -> None:
    config = rung("channels_last", data="synthetic", batch_size=batch_size)
    assert predict(config).peak_gib == pytest.approx(measured_gib, rel=0.05)


@pytest.mark.slow
def test_prediction_is_near_the_recorded_fp32_run() -> None:
    table = recorded("nvidia-h100")
    first = table[table["rung"].eq("device")].iloc[0]
    assert (first["precision"], first["batch_size"]) == ("fp32", 256)
    found = predict(rung("device", data="synthetic", batch_size=256))
    assert found.peak_gib == pytest.approx(first["peak_gib"], rel=0.05)


def test_what_runs_on_the_cpu_is_not_predicted() -> None:
    with pytest.raises(ValueError, match="device='cpu'.*set device='auto'"):
        predict(rung("baseline"))


H100 = "nvidia-h100"
SMALL = {"model": "resnet18", "image_px": 64, "batch_size": 16, "data": "synthetic"}


def row(name: str = "device", *, status: str = "ok", peak_gib: float = 0.5, **changes) -> dict:
    """A record of a small run on a GPU of 2 GiB, as far as a prediction is compared with it."""
    return {
        "status": status,
        "peak_gib": peak_gib,
        "reserved_gib": 0.6,
        "machine": "a GPU",
        "memory_kind": "device allocator",
        "hardware": {"device_gib": 2.0},
        "config": asdict(rung(name, **SMALL | changes)),
    }


@pytest.fixture(scope="module")
def told() -> pd.DataFrame:
    return peaks.of_recorded(H100)


def test_median_error_over_all_recorded_runs_is_within_five_per_cent(told: pd.DataFrame) -> None:
    assert peaks.median_error(told) <= 0.05
    fitted = told[told["status"] == "ok"]
    assert fitted["error"].abs().max() < 0.06 and fitted["error"].notna().all()
    assert {"fp32", "tf32", "fp16", "bf16", "bf16, channels_last"} <= set(fitted["setting"])


def test_every_recorded_run_on_the_gpu_is_there(told: pd.DataFrame) -> None:
    table = recorded(H100)
    table = table[table["device"] != "cpu"]
    measured = {
        (each["batch_size"], each["precision"], each["channels_last"], each["status"])
        for _, each in table.iterrows()
    }
    assert measured == {
        (each.batch_size, each.precision, each.channels_last, each.status)
        for each in told.itertuples()
    }
    known = dict(zip(table["peak_gib"].round(6), table["batch_size"]))
    for each in told[told["status"] == "ok"].itertuples():
        assert known[round(each.measured_gib, 6)] == each.batch_size


def test_each_run_that_did_not_fit_was_told_so(told: pd.DataFrame) -> None:
    oom = told[told["status"] == "oom"]
    assert set(oom["batch_size"]) == {1024, 2048} and oom["measured_gib"].isna().all()
    assert (oom["predicted_gib"] > oom["limit_gib"]).all() and set(oom["limit_gib"]) == {79.2}
    assert peaks.fit_predicted_correctly(told).all()
    wrong = told.assign(predicted_gib=80.0)
    assert list(peaks.fit_predicted_correctly(wrong)) == list(wrong["status"] == "oom")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, settings",
    [
        ("device", {"precision": "fp32", "batch_size": 2048}),
        ("amp", {"precision": "fp16", "batch_size": 256}),
        ("channels_last", {"precision": "bf16", "batch_size": 64}),
    ],
)
def test_saved_predictions_are_what_is_predicted_here(
    name: str, settings: dict, told: pd.DataFrame
) -> None:
    table = recorded(H100)
    wanted = {"rung": name, **settings}
    (found,) = peaks.predicted(table[(table[list(wanted)] == wanted).all(axis=1)])["predicted_gib"]
    saved = told[
        (told[list(settings)] == settings).all(axis=1)
        & told["channels_last"].eq(name == "channels_last")
    ]
    assert found == pytest.approx(saved["predicted_gib"].iloc[0], rel=0.005)


@pytest.mark.slow
def test_runs_are_predicted_with_their_own_settings() -> None:
    given = [
        row(batch_size=32, status="oom", memory_gib=0.125),
        row(),
        row(),
        row(precision="tf32", peak_gib=0.25),
        row("amp"),
        row(status="failed"),
        row() | {"memory_kind": "process, resident"},
    ]
    table = peaks.predicted(pd.DataFrame(given))
    assert list(table["setting"]) == ["fp32", "fp32", "tf32", "half"]  # alike: one row
    assert list(table["batch_size"]) == [16, 32, 16, 16]
    assert list(table["limit_gib"]) == [2, 0.125, 2, 2]
    small, large, tf32, half = table["predicted_gib"]
    assert small == predict(rung("device", **SMALL)).peak_gib == tf32
    assert half < small < large
    assert table["measured_gib"].isna().tolist() == [False, True, False, False]
    errors = [small / 0.5 - 1, float("nan"), small / 0.25 - 1, half / 0.5 - 1]
    assert list(table["error"]) == pytest.approx(errors, nan_ok=True)


def test_what_is_ignored_changes_no_prediction() -> None:
    changes = {
        "rung": "other",
        "data_root": "there",
        "epochs": 3,
        "steps": 50,
        "lr": 1.0,
        "warmup_steps": 9,
        "profile_steps": 2,
        "val_steps": 1,
        "workers": 2,
        "uint8": False,
        "seed": 3,
        "weight_decay": 0.1,
        "memory_gib": 7,
        "fused": True,
        "compile": "default",
    }
    assert set(changes) == peaks.IGNORED
    first = predict(rung("device", **SMALL)).peak_gib
    assert predict(rung("device", **SMALL | changes)).peak_gib == first


@pytest.mark.slow
@pytest.mark.parametrize("change", [{"momentum": 0.0}, {"data": "default"}])
def test_what_changes_a_prediction_is_not_shared(change: dict) -> None:
    table = peaks.predicted(
        pd.DataFrame([row(channels_last=True), row(channels_last=True, **change)])
    )
    assert table["predicted_gib"].nunique() == 2


def test_median_error_counts_both_directions() -> None:
    table = pd.DataFrame({"error": [-0.3, 0.1, 0.2, float("nan")]})
    assert peaks.median_error(table) == 0.2


def test_runs_on_a_cpu_have_nothing_to_compare() -> None:
    table = recorded(H100)
    with pytest.raises(ValueError, match="none of these runs.*choose runs on a GPU"):
        peaks.predicted(table[table["device"] == "cpu"])
    with pytest.raises(ValueError, match="still running: wait"):
        peaks.predicted(table.head(2).assign(status="running"))


def test_a_recorded_run_without_a_saved_prediction_says_how_to_make_one(monkeypatch) -> None:
    monkeypatch.setattr(peaks, "SAVED", "absent")
    with pytest.raises(ValueError, match=r"no prediction is saved.*peaks.save\('nvidia-h100'\)"):
        peaks.of_recorded(H100)


def test_picture_names_machine_and_predictor_and_marks_what_did_not_fit(
    told: pd.DataFrame,
) -> None:
    picture = plot_predicted_peaks(told)
    left, right = picture.axes
    title = picture.get_suptitle()
    assert "NVIDIA H100 80GB HBM3 (recorded 20" in title and "predicted by PyTorch" in title
    names = [text.get_text() for text in picture.legends[0].get_texts()]
    assert names == list(dict.fromkeys(told["setting"]))
    crosses = [line for line in left.lines if line.get_marker() == "X" and len(line.get_xdata())]
    assert sum(len(line.get_xdata()) for line in crosses) == (told["status"] == "oom").sum()
    assert min(min(line.get_ydata()) for line in crosses) > 79.2
    median = f"median {peaks.median_error(told):.1%}"
    assert median in right.get_title(loc="left")
    assert [text.get_text() for text in left.texts] == ["79.2 GiB: all there is"]
    alone = plot_predicted_peaks(told[told["status"] == "oom"])
    assert alone.axes[1].get_title(loc="left") == "error: none fitted"


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
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator is Linux's")
def test_what_was_freed_is_used_again(tmp_path: Path) -> None:
    """64 MiB a second time: 16,384 pages that the system hands out anew, or few."""
    (script := tmp_path / "faults.py").write_text(FAULTS)
    new = subprocess.run([sys.executable, script, "keeps"], capture_output=True, check=True)
    forked = run_forked(script, "as it comes", folder=tmp_path, env=dict(os.environ))
    assert forked.returncode == 0, forked.stderr
    assert 8 * int(new.stdout) < int(forked.stdout)
