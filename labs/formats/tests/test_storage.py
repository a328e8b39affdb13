"""Formats: what reading and decoding an image cost."""

import numpy as np
import pandas as pd
import pytest

from course.checks import discovery
from labs import formats as lab
from labs.formats.formats import STAGES
from trainspeed import timing


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


def test_readers_of_shards_are_drawn() -> None:
    alt = lab.plot_readers(shards=8).alt
    assert "no rule: each shard is read 4×" in alt
    assert "divided: each shard is read once; worker 0: 0, 4" in alt


def test_orders_are_drawn_side_by_side() -> None:
    picture = lab.plot_epoch_orders({"in order": range(8), "reversed": range(7, -1, -1)})
    assert len(picture.axes) == 2 and "reversed" in picture.alt


def test_the_gap_to_synthetic_images_is_drawn() -> None:
    table = pd.DataFrame({"run": ["raw-4"], "workers": [4], "images_per_s": [50.0]})
    alt = lab.plot_format_speeds(table, 150.0).alt
    assert "raw, 4 workers: 50" in alt
    assert "missing to 150 on synthetic images: raw, 4 workers: 100" in alt


def test_prefetched_batches_are_used_up_before_measuring() -> None:
    for entry in (entry for entry in discovery.labs() if entry.number.startswith(("2.", "3."))):
        for config in (config_ for recording in entry.recordings for config_ in recording.configs):
            if config.epochs == 1 and config.workers:  # later epochs begin without any
                ahead = config.workers * config.prefetch_factor
                assert config.warmup_steps >= 2 * ahead, config.rung
                assert config.steps - config.warmup_steps >= 4 * ahead, config.rung
