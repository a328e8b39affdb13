"""Augmentation: what it costs here, recorded runs, and the figures."""

import re
from pathlib import Path

import pytest
import torch

from course.data import default_set
from course.data.augment import OPERATIONS
from course.runs import recordings
from labs import augmentation as lab
from labs.augmentation.images import Batch


@pytest.fixture
def batch(tiny_set: Path, monkeypatch: pytest.MonkeyPatch) -> Batch:
    """Load four small images of a small set."""
    monkeypatch.setattr(default_set, "ensure", lambda: tiny_set)
    return lab.sample_batch(4, 32)


def test_each_operation_changes_an_image(batch: Batch) -> None:
    images = lab.apply_operations(batch.images[0])
    assert [*images] == [*OPERATIONS]
    unchanged = [name for name, image in images.items() if torch.equal(image, batch.images[0])]
    assert unchanged == ["identity"]
    costs = lab.operation_costs(batch.images[:1])
    assert (costs["ms"] > 0).all() and costs["ms"].idxmin() == 0  # identity
    work = lab.work_per_image(4, 32)
    assert [*work.index] == ["load", "RandAugment"] and (work > 0).all()
    alt = lab.plot_operations(batch.images).alt
    assert all(re.search(rf"{name} \d+\.\d\d ms", alt) for name in OPERATIONS)


def test_recorded_trainings_with_mixing() -> None:
    table = lab.mixing_results()
    assert {"none", "mixup, α = 0.2", "cutmix, α = 1"} <= {*table["way"]}
    assert (table.groupby("way")["seed"].nunique() == table["seed"].nunique()).all()
    ways = table.groupby("way")
    memorised = ways["train_top1"].mean()
    assert memorised.idxmax() == "none"  # as the lab says, like the next line
    assert ways["val_loss"].mean().idxmax() == "none"


def test_recorded_epochs() -> None:
    runs = recordings.recorded_runs("nvidia-h200", "augmentation")
    recorded = {run.config.rung: run for run in runs}
    run = recorded["progressive-epochs"]
    alt = lab.plot_crop_sizes({"growing": run}).alt
    assert "1: 128 px, 2.39 s" in alt and "4: 224 px" in alt
    assert "2: 160 px" in alt and "3: 192 px" in alt


def test_mixtures_show_the_shares_of_their_classes(batch: Batch) -> None:
    half = (batch.images.float(), (batch.labels + batch.labels.roll(1, 0)) / 2)
    alt = lab.plot_mixtures(batch, {"mixed": half}).alt
    assert "cat 1.00" in alt and "cat 0.50 flower 0.50" in alt
