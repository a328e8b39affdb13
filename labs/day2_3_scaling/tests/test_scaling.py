"""Efficiency of runs on several GPUs, and the model that continues them."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from cases import for_all
from torch import distributed

from course.analysis import communication as report
from course.config import rung
from course.runs import recordings
from course.runs.record import Record
from course.runs.run import PROJECT, Run
from course.training import models
from labs.day2_3_scaling import efficiency, ring
from labs.day2_3_scaling import figures as pictures
from labs.day2_3_scaling.ring import Bucket, Link, all_reduce_s
from labs.day2_3_scaling.sampling import shares

LINK = Link(20e-6, 40e9)
SYNTHETIC = {"data": "synthetic", "val_steps": 0, "epochs": 1, "steps": 12, "warmup_steps": 2}


def run_of(
    folder: Path,
    gpus: int,
    each: int,
    step_s: float,
    *,
    watts: float = 500.0,
    long_s: float = 0.0,
    machine: str = "GPU",
    **changes: object,
) -> Run:
    """A run's folder as it is after a run on so many GPUs, of so many images each.

    Args:
        long_s: what every fifth step takes longer than the others.
    """
    config = rung("channels_last", batch_size=gpus * each, **{**SYNTHETIC, **changes})
    name = f"{gpus}-{each}-{config.bucket_mb:g}-{config.precision}"
    run = Run(folder / name)
    run.folder.mkdir(parents=True)
    asked = {"rung": config.rung, "gpus": gpus, "config": asdict(config)}
    (run.folder / "launch.json").write_text(json.dumps(asked))
    (run.folder / "config.json").write_text(config.to_json())
    record = Record(
        "ok",
        rung=config.rung,
        gpus=gpus,
        machine=machine,
        device="cuda",
        step_s=step_s,
        backward_s=0.6 * step_s,
        images_per_s=gpus * each / step_s,
        watts=watts,
    )
    (run.folder / "record.json").write_text(json.dumps(asdict(record)))
    rows = [
        {
            "step": n,
            "epoch": 0,
            "load_s": 0.0,
            "step_s": step_s + long_s * (n % 5 == 4),
            "loss": 1.0,
        }
        for n in range(12)
    ]
    (run.folder / "steps.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for rank in range(gpus if gpus > 1 else 0):
        own = {"rank": rank, "watts": watts + rank}
        (run.folder / f"rank-{rank}.json").write_text(json.dumps(own))
    return run


def test_efficiency_is_against_one_gpu_with_the_same_images_on_each(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, 1, 64, 0.020),
        run_of(tmp_path, 2, 64, 0.025),
        run_of(tmp_path, 1, 128, 0.030),
        run_of(tmp_path, 2, 128, 0.032),
    ]
    table = efficiency.scaling(runs).set_index(["images_each", "gpus"])
    assert table.loc[(64, 2), "efficiency"] == pytest.approx(0.8)
    assert table.loc[(128, 2), "efficiency"] == pytest.approx(0.9375)
    assert table.loc[(64, 1), "efficiency"] == 1
    assert table.loc[(64, 2), "efficiency_low"] == pytest.approx(0.8)


def test_bursts_of_batches_count_where_files_are_loaded(tmp_path: Path) -> None:
    runs = [
        run_of(tmp_path, 1, 64, 0.02, data="default"),
        run_of(tmp_path, 2, 64, 0.02, data="default", long_s=0.1),
    ]
    table = efficiency.scaling(runs).set_index("gpus")
    assert table.loc[2, "images_per_s"] == pytest.approx(2 * 64 / 0.04)
    assert table.loc[2, "efficiency"] == pytest.approx(0.5)
    assert math.isnan(table.loc[2, "efficiency_low"])


def test_runs_of_one_machine_are_compared_on_whatever_day_they_were_recorded(
    tmp_path: Path,
) -> None:
    runs = [
        run_of(tmp_path, 1, 64, 0.02, machine="GPU (recorded 2026-11-21, PyTorch 2.11.0)"),
        run_of(tmp_path, 2, 64, 0.02, machine="GPU (recorded 2026-11-22, PyTorch 2.11.0)"),
    ]
    assert efficiency.scaling(runs)["efficiency"].tolist() == [1, 1]
    other = run_of(tmp_path, 4, 64, 0.02, machine="another")
    assert efficiency.scaling([*runs, other])["efficiency"].isna().sum() == 1


def test_energy_is_that_of_all_gpus(tmp_path: Path) -> None:
    pair = run_of(tmp_path, 2, 64, 0.025)
    table = efficiency.scaling([pair])
    assert table.loc[0, "watts"] == 500 + 501
    assert table.loc[0, "joules_per_image"] == pytest.approx(1001 * 0.025 / 128)
    assert math.isnan(table.loc[0, "efficiency"])  # nothing to compare with
    for path in pair.folder.glob("rank-*.json"):
        path.unlink()
    assert efficiency.scaling([pair]).loc[0, "watts"] == 1000  # rank 0's, twice


def test_a_run_of_another_precision_is_nothing_to_compare_with(tmp_path: Path) -> None:
    runs = [run_of(tmp_path, 1, 64, 0.02, precision="fp16"), run_of(tmp_path, 2, 64, 0.025)]
    assert efficiency.scaling(runs)["efficiency"].isna().sum() == 1


def simulated_ring_s(size: int, ranks: int, link: Link) -> float:
    """Message by message: every rank sends a piece to the next, in 2 (p - 1) rounds."""
    clock = np.zeros(ranks)
    for _ in range(2 * (ranks - 1)):
        sent = clock + link.alpha_s + size / ranks / link.bytes_per_s
        clock = np.maximum(clock, np.roll(sent, 1))
    return float(clock.max())


@for_all("ranks", [1, 2, 3, 8, 64])
def test_formula_is_what_a_ring_of_messages_takes(ranks: int) -> None:
    found = all_reduce_s(100e6, ranks, LINK)
    assert found == pytest.approx(simulated_ring_s(100e6, ranks, LINK))
    assert found == pytest.approx(
        2 * (ranks - 1) * LINK.alpha_s + 2 * (ranks - 1) / ranks * 100e6 / LINK.bytes_per_s
    )


def test_a_grid_sends_fewer_messages_and_as_many_bytes() -> None:
    slow, wide = Link(1.0, math.inf), Link(0.0, 1e9)
    assert all_reduce_s(1e8, 64, slow) == 2 * 63
    assert all_reduce_s(1e8, 64, slow, rows=8) == 2 * 7 + 2 * 7
    assert all_reduce_s(1e8, 64, wide, rows=8) == pytest.approx(all_reduce_s(1e8, 64, wide))
    with pytest.raises(ValueError, match="64 ranks do not fill 7 rows: choose a divisor of 64"):
        all_reduce_s(1e8, 64, LINK, rows=7)


@pytest.fixture(scope="module")
def group_of_one():
    found = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29491", "RANK": "0", "WORLD_SIZE": "1"}
    with pytest.MonkeyPatch.context() as patch:
        for key, value in found.items():
            patch.setenv(key, value)
        distributed.init_process_group("gloo")
        yield
        distributed.destroy_process_group()


@pytest.mark.slow
@for_all("bucket_mb", [0.5, 5, 25, 1000])
def test_buckets_are_those_that_ddp_makes(group_of_one, bucket_mb: float) -> None:
    model = models.create("resnet18", 16)
    wrapped = torch.nn.parallel.DistributedDataParallel(model, bucket_cap_mb=bucket_mb)
    for _ in range(3):  # it makes its buckets anew after the first step, and tells in the third
        wrapped(torch.randn(2, 3, 32, 32)).sum().backward()
    told = wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    found = ring.buckets(model, 32, bucket_mb)
    assert [bucket.size for bucket in found] == [int(size) for size in told.split(", ")]
    assert [bucket.ready for bucket in found] == sorted(bucket.ready for bucket in found)
    assert found[-1].ready == 1


def test_what_fits_under_backward_costs_nothing() -> None:
    half = [Bucket(10**8, 0.5)]
    needs = all_reduce_s(10**8, 2, LINK)
    assert ring.exposed_s(half, 2, LINK, backward_s=3 * needs) == 0
    assert ring.exposed_s(half, 2, LINK, backward_s=needs) == pytest.approx(0.5 * needs)
    late = [Bucket(10**8, 1.0)]
    assert ring.exposed_s(late, 2, LINK, backward_s=9.0) == pytest.approx(needs)


def test_buckets_wait_for_each_other() -> None:
    sent = [Bucket(10**8, 0.1), Bucket(10**8, 0.2)]
    needs = all_reduce_s(10**8, 4, LINK)
    table = ring.timeline(sent, 4, LINK, backward_s=needs)
    assert table["start_s"][1] == pytest.approx(table["end_s"][0])
    assert ring.exposed_s(sent, 4, LINK, needs) == pytest.approx(table["end_s"][1] - needs)


OWN_S = 0.0007  # that DDP takes for itself


def measured(folder: Path, link: Link, cases: list[tuple[int, float]]) -> list[Run]:
    """Runs whose steps are as long as the model says for a link."""
    alone = run_of(folder, 1, 64, 0.02)
    runs = [alone]
    for gpus, bucket_mb in cases:
        sent = efficiency.sent_by("resnet50", 1000, 224, bucket_mb)
        longer = OWN_S + float(ring.exposed_s(sent, gpus, link, alone.record.backward_s))
        runs.append(run_of(folder, gpus, 64, 0.02 + longer, bucket_mb=bucket_mb))
    return runs


def messages_of(link: Link, *, late: float = 0.0, sizes: object = (500, 3e6, 3e7)) -> pd.DataFrame:
    """All-reduces as a trace tells them, 20 of each size over 2 and over 4 ranks.

    Args:
        late: the share of those that wait for a rank that is late, up to a thousandfold.
    """
    dice = np.random.default_rng(0)
    rows = [
        (
            ranks,
            int(size),
            all_reduce_s(size, ranks, link)
            * dice.uniform(1, 1.05)
            * (10 ** dice.uniform(0, 3) if dice.random() < late else 1.0),
            "run",
        )
        for ranks in (2, 4)
        for size in sizes
        for _ in range(20)
    ]
    return pd.DataFrame(rows, columns=["ranks", "bytes", "duration_s", "run"])


@pytest.mark.slow
@pytest.mark.parametrize("late", [0.0, 0.4, 0.7])
def test_fit_finds_the_link_however_many_messages_waited(tmp_path: Path, late: float) -> None:
    cases = [(gpus, size) for gpus in (2, 4) for size in (1, 25, 1000)]
    found = efficiency.fit(measured(tmp_path, LINK, cases), messages_of(LINK, late=late))
    assert found.link.alpha_s == pytest.approx(LINK.alpha_s, rel=0.1)
    assert found.link.bytes_per_s == pytest.approx(LINK.bytes_per_s, rel=0.1)
    assert found.own_s == pytest.approx(OWN_S, rel=0.1)
    assert (found.table["model_ms"] / found.table["measured_ms"] - 1).abs().max() < 0.01
    assert 0.8 * LINK.alpha_s < found.low.alpha_s <= found.link.alpha_s * 1.04
    assert found.link.alpha_s / 1.04 <= found.high.alpha_s < 1.2 * LINK.alpha_s


@pytest.mark.slow
def test_few_messages_tell_less(tmp_path: Path) -> None:
    runs, many = measured(tmp_path, LINK, [(2, 25)]), messages_of(LINK, late=0.4)
    widths = []
    for messages in (many, many.iloc[::10]):
        found = efficiency.fit(runs, messages)
        assert found.low.bytes_per_s <= found.link.bytes_per_s <= found.high.bytes_per_s
        widths.append(found.high.bytes_per_s / found.low.bytes_per_s)
    assert 1 < widths[0] < widths[1]


@pytest.mark.slow
@pytest.mark.parametrize("alpha_s", [2e-7, 5e-3])
def test_slow_links_and_fast_ones_are_found(tmp_path: Path, alpha_s: float) -> None:
    link = Link(alpha_s, 2e9)
    found = efficiency.fit(measured(tmp_path, link, [(2, 25)]), messages_of(link, sizes=(9, 1e8)))
    assert found.link.alpha_s == pytest.approx(alpha_s, rel=0.15)
    assert found.link.bytes_per_s == pytest.approx(2e9, rel=0.15)


def test_nothing_to_fit_is_said(tmp_path: Path) -> None:
    pair = measured(tmp_path, LINK, [(2, 25)])
    for runs, messages in ((pair[1:], messages_of(LINK)), (pair, messages_of(LINK).head(0))):
        with pytest.raises(ValueError, match="nothing to fit: traced runs on several GPUs"):
            efficiency.fit(runs, messages)


@pytest.mark.slow
def test_the_recorded_link_is_nvlink_and_the_steps_are_explained() -> None:
    runs = efficiency.recorded_runs("nvidia-h200-x4")
    traced = [
        *report.recorded_runs("nvidia-h200-x4", 2).values(),
        *report.recorded_runs("nvidia-h200-x4").values(),
    ]
    messages = report.messages(traced)
    assert set(messages["ranks"]) == {2, 4} and len(messages) > 100
    found = efficiency.fit(runs, messages)
    assert 0.5e-6 < found.link.alpha_s < 10e-6
    assert 50e9 < found.link.bytes_per_s < 450e9  # an H200's NVLink has 450 GB/s each way
    # What DDP takes for itself, a benchmark measured in another way; and two GPUs tell of four.
    lines = (PROJECT / "benchmarks" / "ddp_h200_x4.jsonl").read_text().splitlines()
    alone, _, view, *_ = (json.loads(line)["step_ms"][1] for line in lines)
    assert found.own_s * 1e3 == pytest.approx(view - alone, rel=0.2)
    of_two = efficiency.fit(runs[:2], messages)
    four = efficiency.predicted(runs[0], of_two.link, [4], own_s=of_two.own_s)["step_ms"][0]
    assert four == pytest.approx(1e3 * runs[2].record.step_s, rel=0.005)
    assert efficiency.scaling(runs)["efficiency"].iloc[-1] > 0.97


@pytest.mark.slow
def test_prediction_repeats_what_was_fitted(tmp_path: Path) -> None:
    runs = measured(tmp_path, LINK, [(2, 25), (4, 25)])
    table = efficiency.predicted(runs[0], LINK, [1, 2, 4, 2048], own_s=OWN_S).set_index("gpus")
    assert table.loc[1, "efficiency"] == 1
    assert table.loc[4, "step_ms"] == pytest.approx(1e3 * runs[2].record.step_s)
    assert table["efficiency"].is_monotonic_decreasing
    grid = efficiency.predicted(runs[0], LINK, [4, 12, 2048], rows=8, own_s=OWN_S)
    assert list(grid["gpus"]) == [2048]
    assert grid["efficiency"][0] > table.loc[2048, "efficiency"]


def test_published_points_have_sources() -> None:
    table = efficiency.published()
    assert table["source"].str.contains("arXiv:").all()
    assert table["efficiency"].between(0.5, 1).all() and table["gpus"].max() == 2048


def test_shares_cover_every_image_once_an_epoch() -> None:
    table = shares(24, 3, 4)
    counted = table.groupby(["epoch", "image"]).size()
    assert len(counted) == 48 and set(counted) == {1}
    first, second = (table[table["epoch"] == epoch]["image"].tolist() for epoch in (0, 1))
    assert first != second
    same = shares(24, 3, 4, set_epoch=False)
    assert [*same[same["epoch"] == 0]["image"]] == [*same[same["epoch"] == 1]["image"]]
    padded = shares(7, 2, 4, epochs=1).groupby("image").size()
    assert sorted(padded) == [1] * 6 + [2]


@pytest.mark.slow
def test_pictures_are_drawn(tmp_path: Path) -> None:
    runs = measured(tmp_path, LINK, [(2, 25), (4, 25)])
    curve = efficiency.predicted(runs[0], LINK, [1, 2, 4, 8])
    band = curve.assign(low=curve["efficiency"] - 0.1, high=1.0)
    sent = ring.timeline([Bucket(10**8, 0.5)], 2, LINK, 0.01)
    for picture in (
        pictures.plot_measured(efficiency.scaling(runs)),
        pictures.plot_overlap(sent, 0.01),
        pictures.plot_beyond({"model": band}, efficiency.published()),
        pictures.plot_shares({"two": shares(9, 2, 2)}),
    ):
        assert picture._repr_png_().startswith(b"\x89PNG")


def test_a_table_without_figures_of_power_is_drawn(tmp_path: Path) -> None:
    table = efficiency.scaling([run_of(tmp_path, 1, 64, 0.02)]).assign(joules_per_image=math.nan)
    assert isinstance(pictures.plot_measured(pd.DataFrame(table)), pictures.Picture)


def test_what_is_not_recorded_is_said(capsys: pytest.CaptureFixture) -> None:
    for machine in ("nvidia-h100", "abacus"):
        assert efficiency.recorded_runs(machine) == []
        assert f"{machine}: channels_last on several GPUs is not" in capsys.readouterr().out


def test_one_rung_at_a_time_is_recorded_scaling(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = [
        run_of(tmp_path, 1, 64, 0.02),
        run_of(tmp_path, 2, 64, 0.02),
        run_of(tmp_path, 2, 32, 0.02, rung="compile", compile="default"),
    ]
    monkeypatch.setattr(recordings, "machines", lambda: ["two"])
    known = {("two", "scaling"): runs}
    monkeypatch.setattr(recordings, "recorded_runs", lambda *asked: known[asked])
    assert efficiency.recorded_runs("two") == runs[:2]
    assert efficiency.recorded_runs("two", "compile") == runs[2:]
