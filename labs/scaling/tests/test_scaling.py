"""Efficiency of runs on several GPUs, and the model that extrapolates them."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
from torch import distributed

from course.analysis import recorded_links
from course.config import rung
from course.runs.record import Record
from course.runs.run import Run
from course.training import models
from labs import scaling as lab
from labs.scaling import model
from labs.scaling.model import Bucket, Link, all_reduce_s, exposed_s

LINK = Link(20e-6, 40e9)
OVERHEAD_S = 0.0007
FOUR = "nvidia-h200-x4"
SYNTHETIC = {"data": "synthetic", "val_steps": 0, "epochs": 1, "steps": 12, "warmup_steps": 2}


def make_run(
    folder: Path,
    gpus: int,
    images: int,
    step_s: float,
    *,
    machine: str = "GPU",
    **changes: object,
) -> Run:
    """Write a run's folder, with `images` on each GPU."""
    config = rung("channels_last", batch_size=gpus * images, **{**SYNTHETIC, **changes})
    run = Run(folder / f"{gpus}-{images}-{config.bucket_mb:g}-{config.precision}")
    run.folder.mkdir(parents=True)
    request = {"rung": config.rung, "gpus": gpus, "config": asdict(config)}
    record = Record(
        "ok",
        rung=config.rung,
        gpus=gpus,
        machine=machine,
        device="cuda",
        step_s=step_s,
        backward_s=0.6 * step_s,
        images_per_s=gpus * images / step_s,
        watts=500.0,
    )
    steps = [{"step": i, "epoch": 0, "load_s": 0, "step_s": step_s, "loss": 1} for i in range(12)]
    (run.folder / "launch.json").write_text(json.dumps(request))
    (run.folder / "config.json").write_text(config.to_json())
    (run.folder / "record.json").write_text(json.dumps(record.to_values()))
    (run.folder / "steps.jsonl").write_text("\n".join(map(json.dumps, steps)))
    for rank in range(gpus if gpus > 1 else 0):
        row = {"rank": rank, "watts": 500.0 + rank}
        (run.folder / f"rank-{rank}.json").write_text(json.dumps(row))
    return run


def test_efficiency_compares_with_one_gpu_and_as_many_images(tmp_path: Path) -> None:
    runs = [
        make_run(tmp_path, 1, 64, 0.020, machine="GPU (recorded 2026-11-21, PyTorch 2.11.0)"),
        make_run(tmp_path, 2, 64, 0.025, machine="GPU (recorded 2026-11-22, PyTorch 2.11.0)"),
        make_run(tmp_path, 1, 128, 0.030),
        make_run(tmp_path, 2, 128, 0.032),
        make_run(tmp_path, 4, 128, 0.032, machine="different"),
    ]
    table = lab.efficiency_table(runs).set_index(["images_per_gpu", "gpus"])
    assert table["efficiency"][64, 2] == pytest.approx(0.8)
    assert table["efficiency"][128, 2] == pytest.approx(0.9375)
    assert table["efficiency"][64, 1] == 1
    assert math.isnan(table["efficiency"][128, 4])


def test_energy_is_that_of_all_gpus(tmp_path: Path) -> None:
    run = make_run(tmp_path, 2, 64, 0.025)
    table = lab.efficiency_table([run])
    assert table["watts"][0] == 500 + 501
    assert table["joules_per_image"][0] == pytest.approx(1001 * 0.025 / 128)


@pytest.fixture(scope="module")
def group_of_one():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.parametrize("bucket_mb", [0.5, 25])
def test_buckets_are_those_of_ddp(group_of_one: None, bucket_mb: float) -> None:
    network = models.create("resnet18", 16)
    wrapped = torch.nn.parallel.DistributedDataParallel(network, bucket_cap_mb=bucket_mb)
    for _ in range(3):  # DDP rebuilds its buckets after the first step, and logs it in the third
        wrapped(torch.randn(2, 3, 32, 32)).sum().backward()
    sizes = wrapped._get_ddp_logging_data()["rebuilt_bucket_sizes"]
    buckets = lab.ddp_buckets(network, 32, bucket_mb)
    assert [bucket.size for bucket in buckets] == [int(size) for size in sizes.split(", ")]


def test_all_reduce_takes_as_long_as_its_messages() -> None:
    for ranks in (1, 2, 64):  # 2 (p - 1) rounds, in which each rank sends a piece to the next
        rounds_s = 2 * (ranks - 1) * (LINK.alpha_s + 100e6 / ranks / LINK.bytes_per_s)
        assert all_reduce_s(100e6, ranks, LINK) == pytest.approx(rounds_s)
    assert all_reduce_s(1e8, 64, Link(1.0, math.inf), rows=8) == 2 * 7 + 2 * 7


def test_exposed_is_what_outlasts_backward() -> None:
    needed_s = all_reduce_s(10**8, 2, LINK)
    half, full = [Bucket(10**8, 0.5)], [Bucket(10**8, 1.0)]
    assert exposed_s(half, 2, LINK, backward_s=3 * needed_s) == 0
    assert exposed_s(half, 2, LINK, backward_s=needed_s) == pytest.approx(0.5 * needed_s)
    assert exposed_s(full, 2, LINK, backward_s=9.0) == pytest.approx(needed_s)


def model_runs(folder: Path, link: Link, cases: list[tuple[int, float]]) -> list[Run]:
    """Write runs whose steps are as long as the model predicts for a link."""
    base = make_run(folder, 1, 64, 0.02)
    runs = [base]
    for gpus, bucket_mb in cases:
        buckets = model.config_buckets("resnet50", 224, bucket_mb)
        extra_s = OVERHEAD_S + exposed_s(buckets, gpus, link, base.record.backward_s)
        runs.append(make_run(folder, gpus, 64, 0.02 + extra_s, bucket_mb=bucket_mb))
    return runs


@pytest.mark.slow
def test_predictions_repeat_the_fitted_runs(tmp_path: Path) -> None:
    runs = model_runs(tmp_path, LINK, [(2, 25), (4, 25)])
    table = lab.predict_scaling(runs[0], LINK, [1, 2, 4, 2048], overhead_s=OVERHEAD_S)
    by_gpus = table.set_index("gpus")
    assert by_gpus["efficiency"][1] == 1 and by_gpus["efficiency"].is_monotonic_decreasing
    assert by_gpus["step_ms"][4] == pytest.approx(1e3 * runs[2].record.step_s)
    grid = lab.predict_scaling(runs[0], LINK, [4, 12, 2048], rows=8, overhead_s=OVERHEAD_S)
    assert list(grid["gpus"]) == [2048]
    assert grid["efficiency"][0] > by_gpus["efficiency"][2048]
    published = lab.published_efficiencies()
    assert "A  Facebook 2017" in legend_of(lab.plot_extrapolation({"model": table}, published))
    overlap = lab.plot_overlap(lab.bucket_timeline([Bucket(10**8, 0.5)], 2, LINK, 0.01), 0.01)
    overlap.draw_without_rendering()


def legend_of(picture) -> str:
    return "\n".join(picture.axes[0].get_legend_handles_labels()[1])


def test_a_node_that_is_not_recorded_is_not_drawn() -> None:
    table = lab.efficiency_table(lab.scaling_runs(FOUR, "compile"))
    picture = lab.plot_scaling(table, lab.node_with_prediction("compile", "abacus"))
    assert [*picture.axes[0].get_xticks()] == [1, 2, 4] and "predicted" not in legend_of(picture)


def test_runs_on_pretended_hosts_are_as_slow_as_predicted() -> None:
    machine, links = "nvidia-h100-x4", recorded_links("nvidia-h100-x4")
    assert [*links][:2] == ["2 GPUs, 1 host", "2 GPUs, 2 hosts"]
    table = lab.predict_hosts(machine, "compile", {(4, 2): Link(15e-6, 4e9)})
    assert table["predicted"][0] == pytest.approx(table["measured"][0], abs=2)
    runs = lab.technique_runs(machine, "compile")
    assert [*runs] == ["one GPU", "DDP", *lab.TECHNIQUES]
    step_ms = lab.compare_steps(runs)["step_ms"]
    assert step_ms["one GPU"] < step_ms["accumulate"] < step_ms["DDP"] < step_ms["powersgd"]
    with pytest.raises(ValueError, match="compile on 3 GPUs of 3 pretended hosts is not recorded"):
        lab.network_run(machine, "compile", 3, 3)
    fits = dict.fromkeys(links, Link(15e-6, 4e9))
    assert "4 GPUs, 2 hosts" in lab.plot_links(links, fits).alt
