"""Formats: what reading and decoding an image cost, and the order of images in an epoch."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from job_helpers import small_disk

from course.checks import discovery
from course.data import formats
from labs import formats as lab
from labs.formats.formats import STAGES
from trainspeed import timing


def test_a_disk_is_measured_and_left_as_it_was(tmp_path: Path) -> None:
    table = lab.measure_disk(tmp_path / "new", files=8, kb=4)
    assert [*(tmp_path / "new").iterdir()] == []
    assert table["way"].nunique() == 3 and (table["ms"] > 0).all()
    assert np.allclose(table["mb_per_s"], table["images_per_s"] * 4 / 1000)
    with small_disk(tmp_path / "small", "4m") as place:
        with pytest.raises(OSError):
            lab.measure_disk(place, files=100, kb=100)
        assert [path for path in place.iterdir() if path.name != "lost+found"] == []
    assert "cold" in lab.plot_disk(table).alt


def test_a_recorded_shared_file_system() -> None:
    table = lab.shared_files()
    assert (table["images_per_s"] < table["local_images_per_s"]).all()
    assert table["images_per_s"].idxmin() == "files"  # as the lab says
    assert table["local_images_per_s"]["files"] > table["local_images_per_s"]["tar file"]
    assert (table["opens"].drop("files") < 0.01).all()
    assert "over the network: files: " in lab.plot_shared_files(table).alt


def test_costs_of_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "ROUNDS", 1)
    table = lab.core_costs(images=4, image_px=64)
    assert [*table.index] == ["files", "shards", "small", "raw", "raw, cut out"]
    assert np.allclose(table[[*STAGES]].sum(axis=1), table["ms"])
    assert table.loc["files", "kb"] > table.loc["small", "kb"]
    assert table.loc["raw", "kb"] == pytest.approx(256 * 256 * 3 / 1e3)
    assert "crop and resize: files: " in lab.plot_core_costs(table).alt


def test_orders_have_every_image_once() -> None:
    orders = lab.epoch_orders(images=400)
    assert all(sorted(places) == [*range(400)] for places in orders.values())
    by_shard = orders["order of shards only"].reshape(16, 25)
    assert (np.diff(by_shard, axis=1) == 1).all()
    assert len(lab.plot_epoch_orders(orders).axes) == 4


@pytest.mark.slow
def test_three_readers_yield_the_same_images() -> None:
    table = lab.reader_speeds("solutions/train.py")
    assert table["images"].nunique() == 1 and (table["images_per_s"] > 0).all()
    with pytest.raises(NotImplementedError, match="images_of"):
        lab.reader_speeds("exercises/train.py")
    shard = formats.paths(formats.convert_set("shards"), "train")[0]
    members = lab.shard_members(shard)
    assert [Path(name).suffix for name in members["name"]] == [".jpg", ".cls"] * 2
    begin = int(members["begins_at"][0])
    assert shard.read_bytes()[begin : begin + 2] == b"\xff\xd8"  # a JPEG's first bytes


def test_the_gap_to_synthetic_images_is_drawn() -> None:
    table = pd.DataFrame({"run": ["raw-4"], "workers": [4], "images_per_s": [50.0]})
    alt = lab.plot_format_speeds(table, 150.0).alt
    assert "raw, 4 workers: 50" in alt
    assert "missing to 150 on synthetic images: raw, 4 workers: 100" in alt


def test_prefetched_batches_are_used_up_before_measuring() -> None:
    for entry in (entry for entry in discovery.labs() if entry.number.startswith("3.")):
        for config in (config_ for recording in entry.recordings for config_ in recording.configs):
            if config.epochs == 1 and config.workers:  # later epochs begin without any
                ahead = config.workers * config.prefetch_factor
                assert config.warmup_steps >= 2 * ahead, config.rung
                assert config.steps - config.warmup_steps >= 4 * ahead, config.rung
