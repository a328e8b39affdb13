"""Batch sweeps: real runs up to out of memory, the line through them, and their picture."""

import pandas as pd
import pytest
from job_helpers import DEADLINE_S, nothing_left, warm_up  # noqa: F401

from course.config import rung, vary
from course.jobs import launch
from course.runs.recordings import recorded
from course.runs.run import PROJECT
from labs.day1_1_gpu.batch_sweep import Fit, fit, sweep
from labs.day1_1_gpu.figures import plot_batch_sweep


@pytest.fixture(scope="module")
def h100() -> pd.DataFrame:
    """The sweep that was recorded: batch 64 to 1024, and 2048, which did not fit."""
    table = recorded("nvidia-h100")
    return sweep(table[(table["rung"] == "channels_last") & (table["precision"] == "bf16")])


def words(table: pd.DataFrame, *rest, **options) -> str:
    """All that is written in the picture."""
    picture = plot_batch_sweep(table, *rest, **options)
    found = [text.get_text() for axes in picture.axes for text in (axes.title, *axes.texts)]
    for axes in picture.axes:
        if legend := axes.get_legend():
            found += [text.get_text() for text in legend.get_texts()]
        found += [axes.get_title(loc="left")]
    return "\n".join([*found, picture.get_suptitle()])


def test_recorded_sweep_is_a_line_up_to_where_it_does_not_fit(h100):
    assert list(h100["batch_size"]) == [64, 128, 256, 512, 1024, 2048]
    assert list(h100["status"]) == ["ok"] * 5 + ["oom"]
    line = fit(h100)
    assert line.misfit < 0.01
    assert 0.2 < line.fixed_gib < 0.5  # weights, momentum and bf16 copies are 0.24
    assert line.at(1024) == pytest.approx(43.57, rel=0.01)
    assert 1024 < line.largest_batch(80) < 2048  # as the runs at these two say


def test_line_is_the_one_that_made_the_points():
    table = pd.DataFrame({"batch_size": [8, 16, 32], "status": "ok", "tf32": False})
    table["peak_gib"] = 0.5 + 0.25 * table["batch_size"]
    table[["machine", "memory_kind", "model", "precision", "channels_last", "inputs"]] = "one"
    line = fit(table)
    assert (line.fixed_gib, line.per_image_gib) == (pytest.approx(0.5), pytest.approx(0.25))
    assert line.misfit == pytest.approx(0, abs=1e-9)
    table.loc[1, "peak_gib"] *= 1.1
    assert 0.03 < fit(table).misfit < 0.1
    assert "0.50 GiB at any batch, and 256.0 MiB more for each image" in str(line)


def test_largest_batch_is_the_last_within_the_limit():
    line = Fit(fixed_gib=1.0, per_image_gib=0.5, misfit=0.0)
    assert [line.largest_batch(gib) for gib in (0.5, 1.4, 1.5, 3.4, 3.5)] == [0, 0, 1, 4, 5]


def test_picture_shows_where_it_no_longer_fits(h100):
    text = words(h100, fit(h100), limit_gib=79.2)
    assert "out of memory at 2048" in text
    assert "NVIDIA H100 80GB HBM3 (recorded" in text
    assert "limit: 79.2 GiB, enough for batch 18" in text
    assert "does not grow: 0.34 GiB" in text and "grows: 43.2 MiB an image" in text
    assert "out of memory" not in words(h100[h100["status"] == "ok"])


def test_picture_of_runs_that_all_ran_out_of_memory(h100):
    text = words(h100[h100["status"] == "oom"])
    assert "out of memory at 2048" in text and "measured" not in text


@pytest.mark.parametrize("kept", ["oom", "none"])
def test_line_needs_two_runs_that_fit(h100, kept):
    with pytest.raises(ValueError, match="two batch sizes or more.*there are 0: run smaller"):
        fit(h100[h100["status"] == kept])


def test_runs_of_two_machines_lie_on_no_line(h100):
    other = h100.assign(machine="another one", batch_size=h100["batch_size"] + 1)
    with pytest.raises(ValueError, match="differ in more than their batch.*another one"):
        fit(pd.concat([h100, other]))


def test_recorded_runs_of_several_precisions_lie_on_no_line():
    with pytest.raises(ValueError, match="'precision'.*Choose those that are alike"):
        fit(sweep(recorded("nvidia-h100")))


def test_peak_that_does_not_grow_is_refused(h100):
    with pytest.raises(ValueError, match="does not grow with the batch.*further apart"):
        fit(h100.assign(peak_gib=[5.0, 4.0, 3.0, 2.0, 1.0, 1.0]))


def test_a_sweep_of_nothing_is_refused():
    with pytest.raises(ValueError, match="a sweep needs runs"):
        sweep([])


def test_a_run_that_is_not_over_is_refused():
    table = recorded("nvidia-h100").head(2).assign(status=["ok", "running"])
    with pytest.raises(ValueError, match=r"still running: wait\(runs, check=False\)"):
        sweep(table)


@pytest.mark.slow
def test_real_sweep_on_this_machine_ends_out_of_memory(runs_root):
    warm_up()  # or all three would start cold
    config = rung(
        "device",
        quick=True,
        device="cpu",
        model="resnet18",
        data="synthetic",
        val_steps=0,
        steps=2,
        warmup_steps=1,
        memory_gib=1.5,
    )
    runs = launch.launch_all(PROJECT / "solutions/train.py", vary(config, batch_size=[8, 96, 448]))
    launch.wait(runs, check=False, timeout_s=DEADLINE_S)
    table = sweep(runs)
    assert list(table["status"]) == ["ok", "ok", "oom"]
    assert set(table["memory_kind"]) == {"process, resident"}
    assert table["peak_gib"].is_monotonic_increasing
    assert table["peak_gib"][1] < 1.5 < table["peak_gib"][2]
    line = fit(table)
    assert line.fixed_gib > 0.4  # libraries
    assert 96 <= line.largest_batch(1.5) < 448
    text = words(table, line)
    assert "out of memory at 448" in text and "limit: 1.5 GiB, enough for batch" in text
    assert "peak memory (process, resident)" in text
