"""Formats: what opening, reading and an image cost, and in which order images come."""

import os
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from job_helpers import small_disk

from course.checks import discovery
from labs import day3_1_formats as formats
from labs.day3_1_formats import disk as of_disk
from labs.day3_1_formats import stages as of_core


def test_opening_is_images_times_latency() -> None:
    found = formats.opening([0, 6], images=1000, shard_images=300)
    assert found.loc[6].tolist() == [pytest.approx(0.1), pytest.approx(0.0004)]  # four shards
    assert found.loc[0].tolist() == [0, 0]
    with pytest.raises(ValueError, match="a latency of -1 ms: it must be 0 or more"):
        formats.opening([-1])


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    found = formats.measure_disk(tmp_path / "new", files=8, kb=4)
    assert [*(tmp_path / "new").iterdir()] == []
    assert found["way"].nunique() == 3 and (found["ms"] > 0).all()
    assert np.allclose(found["mb_per_s"], found["images_per_s"] * 4 / 1000)
    caches = {"cold", "warm"} if hasattr(os, "posix_fadvise") else {"warm"}
    assert {*found["cache"]} == caches


def test_a_system_that_forgets_nothing_has_no_cold_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(of_disk.os, "posix_fadvise", raising=False)
    found = formats.measure_disk(tmp_path, files=2, kb=1)
    assert {*found["cache"]} == {"warm"}
    assert "cold" not in formats.plot_disk(found).alt


def test_a_full_disk_keeps_nothing(tmp_path: Path) -> None:
    with small_disk(tmp_path / "small", "4m") as place:
        with pytest.raises(OSError):
            formats.measure_disk(place, files=100, kb=100)
        assert [path for path in place.iterdir() if path.name != "lost+found"] == []


def test_costs_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_core, "ROUNDS", 1)
    found = formats.costs(images=4, image_px=64)
    assert [*found.index] == ["files", "shards", "small", "raw", "raw, cut out"]
    assert np.allclose(found[[*of_core.STAGES]].sum(axis=1), found["ms"])
    assert np.allclose(1e3 / found["ms"], found["images_per_s"])
    assert found.loc["files", "kb"] > found.loc["small", "kb"]
    assert found.loc["raw", "kb"] == pytest.approx(256 * 256 * 3 / 1e3)


def test_what_is_cut_out_has_the_right_size_and_is_not_resized() -> None:
    image = torch.arange(3 * 20 * 30, dtype=torch.int64).reshape(3, 20, 30)
    part = of_core._cut_out(8)(image)
    assert part.shape == (3, 8, 8)
    assert {*part.flatten().tolist()} <= {*image.flatten().tolist()}
    assert (part[:, :, 1:] - part[:, :, :-1] == 1).all()  # neighbours stay neighbours


def test_orders_have_every_image_once() -> None:
    found = formats.orders(images=400, shards=8, buffers=[20])
    assert [*found] == ["true shuffle", "order of shards only", "and a buffer of 20"]
    assert all(sorted(places) == [*range(400)] for places in found.values())
    in_row = found["order of shards only"].reshape(8, 50)
    assert (np.diff(in_row, axis=1) == 1).all()
    with pytest.raises(ValueError, match="10 images do not make 3 equal shards"):
        formats.orders(images=10, shards=3)


@pytest.mark.slow
def test_three_ways_read_the_same_images() -> None:
    found = formats.reading("solutions/train.py")
    assert found["images"].nunique() == 1 and (found["images_per_s"] > 0).all()
    with pytest.raises(NotImplementedError, match="images_of"):
        formats.reading("exercises/train.py")


def test_members_of_a_shard() -> None:
    shard = formats.paths(formats.convert("shards"), "train")[0]
    found = formats.members(shard)
    assert [Path(name).suffix for name in found["name"]] == [".jpg", ".cls"] * 2
    place = int(found["begins_at"][0])
    assert shard.read_bytes()[place : place + 2] == b"\xff\xd8"  # a JPEG's first bytes


def test_what_is_missing_to_synthetic_images_is_drawn() -> None:
    table = pd.DataFrame({"run": ["raw-4"], "workers": [4], "images_per_s": [50.0]})
    alt = formats.plot_fed(table, 150.0).alt
    assert "raw, 4 workers: 50" in alt
    assert "missing to 150 on synthetic images: raw, 4 workers: 100" in alt


def test_batches_made_ahead_do_not_feed_what_is_measured() -> None:
    for lab in (lab for lab in discovery.labs() if lab.number.startswith("3.")):
        for recording in lab.recordings:
            for config in recording.configs:
                if config.epochs > 1 or not config.workers:  # an epoch begins with none
                    continue
                ahead = config.workers * config.prefetch_factor
                assert config.warmup_steps >= 2 * ahead, config.rung
                assert config.steps - config.warmup_steps >= 4 * ahead, config.rung
