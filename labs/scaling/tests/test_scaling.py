"""Efficiency of runs on several GPUs, and the model that predicts it."""

import json
import math
from dataclasses import asdict
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import distributed

from course.analysis import recorded_links
from course.config import rung
from course.runs.record import Record
from course.runs.run import Run
from course.training import models
from labs import scaling as lab
from labs.scaling import verify
from labs.scaling.efficiency import mean_step_s
from labs.scaling.model import Bucket, Link, all_reduce_s, ddp_buckets, exposed_s

LINK = Link(20e-6, 40e9)
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
    buckets = ddp_buckets(network, 32, bucket_mb)
    assert [bucket.size for bucket in buckets] == [int(size) for size in sizes.split(", ")]


def test_exposed_is_what_outlasts_backward() -> None:
    needed_s = all_reduce_s(10**8, 2, LINK)
    half, full = [Bucket(10**8, 0.5)], [Bucket(10**8, 1.0)]
    assert exposed_s(half, 2, LINK, backward_s=3 * needed_s) == 0
    assert exposed_s(half, 2, LINK, backward_s=needed_s) == pytest.approx(0.5 * needed_s)
    assert exposed_s(full, 2, LINK, backward_s=9.0) == pytest.approx(needed_s)
    for ranks in (2, 3, 8):  # the learner's function is the model's
        buckets = [*half, Bucket(3 * 10**7, 0.6), *full]
        ready_s = [bucket.ready * 0.004 for bucket in buckets]
        message_s = [all_reduce_s(bucket.size, ranks, LINK) for bucket in buckets]
        learned_s = verify.exposed_s(ready_s, message_s, 0.004)
        assert learned_s == pytest.approx(exposed_s(buckets, ranks, LINK, 0.004))


def test_a_link_is_fitted_to_its_smallest_and_largest_message() -> None:
    sizes = [0, 10**6, 10**8]
    seconds = [all_reduce_s(size, 4, LINK) for size in sizes]
    fit = lab.fit_link(pd.DataFrame({"ranks": 4, "bytes": sizes, "seconds": seconds}))
    assert fit == pytest.approx(LINK)
    assert [*recorded_links("nvidia-h100-x4")][:2] == ["2 GPUs, 1 host", "2 GPUs, 2 hosts"]


def test_the_mean_step_contains_late_steps(tmp_path: Path) -> None:
    run = make_run(tmp_path, 4, 64, 0.02)
    rows = run.steps.to_dict("records")
    rows[-1]["step_s"] = 0.12  # one of ten steps after warm-up
    (run.folder / "steps.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert mean_step_s(Run(run.folder)) == pytest.approx(0.03)


def test_techniques_are_compared_with_one_gpu() -> None:
    step_ms = lab.compare_techniques("nvidia-h100-x4", "compile")["step_ms"]
    assert step_ms["accumulate"] < step_ms["DDP"] < step_ms["powersgd"]


def test_a_heading_names_the_rungs_of_each_recording() -> None:
    names = ["rung", "machine", "gpus", "images_per_s", "efficiency", "joules_per_image"]
    rows = [(rung, day, 1, 10, 1, 0.1) for rung, day in zip("abc", ("Monday", "Friday", "Monday"))]
    picture = lab.plot_scaling(pd.DataFrame(rows, columns=names))
    assert picture.get_suptitle().splitlines() == ["Friday: b", "Monday: a, c"]


def test_figures_contain_their_values() -> None:
    assert (
        "weak, recorded" in lab.plot_weak_and_strong({"weak": {1: 1, 2: 0.9}}, {"weak": {1: 1}}).alt
    )
    lab.plot_lost_time().draw_without_rendering()
    lab.plot_overlap([Bucket(10**8, 0.5)], 2, LINK, 0.01).draw_without_rendering()
