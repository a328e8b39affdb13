"""Augmentation: what it costs here, CutMix as a loop, and the figures."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

from course.data import default_set
from course.data.augment import OPERATIONS
from course.runs import recordings
from course.runs.run import Run
from labs import day3_2_augmentation as lab
from labs.day3_2_augmentation import mixing_checks as mixing


@pytest.fixture
def batch(tiny_set: Path, monkeypatch: pytest.MonkeyPatch) -> lab.images.Batch:
    """Load four small images of a small set."""
    monkeypatch.setattr(default_set, "ensure", lambda: tiny_set)
    return lab.sample_batch(4, 32)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Run]:
    runs = recordings.recorded_runs("nvidia-h200", "augmentation")
    return {run.config.rung: run for run in runs}


def test_each_operation_changes_an_image(batch: lab.images.Batch) -> None:
    assert batch.images.shape == (4, 3, 32, 32) and batch.images.dtype == torch.uint8
    assert batch.labels.argmax(dim=1).tolist() == [0, 1, 2, 3]
    assert batch.labels.shape == (4, len(batch.classes))
    images = lab.apply_operations(batch.images[0])
    assert [*images] == [*OPERATIONS]
    unchanged = [name for name, image in images.items() if torch.equal(image, batch.images[0])]
    assert unchanged == ["identity"]
    costs = lab.operation_costs(batch.images[:1])
    assert (costs["ms"] > 0).all() and costs["ms"].idxmin() == 0  # identity
    work = lab.work_per_image(4, 32)
    assert [*work.index] == ["load", "RandAugment"] and (work > 0).all()
    alt = lab.plot_operations(images, costs.assign(ms=0.25)).alt
    assert all(f"{name} 0.25 ms" in alt for name in OPERATIONS)


def test_cutmix_as_a_loop_is_correct_and_calls_more_for_more_images() -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    few, many = (partial(lab.cutmix_loop, *mixing._constants(count), 1.0) for count in (8, 64))
    assert lab.count_operators(many) > 4 * lab.count_operators(few)
    drawn = mixing._pasted(*mixing._mixed(lab.cutmix_loop, mixing._constants(64), 1.0))
    mixing._check_labels("cutmix", drawn)


def test_calls_are_compared() -> None:
    tensor = torch.ones(2)
    table = lab.compare_calls(
        {"once": lambda: tensor + tensor, "twice": lambda: tensor + tensor + tensor}
    )
    assert table["operators"].to_dict() == {"once": 1, "twice": 2} and (table["ms"] > 0).all()


def test_a_script_is_loaded_without_running_its_main() -> None:
    script = lab.load_script("solutions/train.py")
    images, labels = script.mixup(torch.ones(4, 3, 8, 8), torch.eye(4), 1.0)
    assert images.shape == (4, 3, 8, 8) and labels.shape == (4, 4)


def test_recorded_trainings_epoch_by_epoch(recorded: dict[str, Run]) -> None:
    table = lab.epoch_table([recorded["none-seed-0"], recorded["cutmix-seed-1"]])
    assert len(table) == 40 and table["epoch"].tolist() == [*range(1, 21)] * 2
    seeds = table.groupby("augmentation")["seed"].first()
    assert seeds.to_dict() == {"none": 0, "cutmix": 1}
    assert table["val_top1"].between(0, 1).all()
    run = recorded["progressive-epochs"]
    table = lab.epoch_times(run)
    assert table["epoch"].tolist() == [1, 2, 3, 4]
    assert table["image_px"].tolist() == [128, 160, 192, 224]
    assert table["seconds"].sum() == pytest.approx(run.steps["step_s"].sum())
    assert table["images_per_s"][0] == pytest.approx(256 * 64 / table["seconds"][0])
    alt = lab.plot_crop_sizes({"growing": table}).alt
    assert "1: 128 px, 2.39 s" in alt and "4: 224 px" in alt


def test_mixtures_show_the_shares_of_their_classes(batch: lab.images.Batch) -> None:
    half = (batch.images.float(), (batch.labels + batch.labels.roll(1, 0)) / 2)
    alt = lab.plot_mixtures(batch, {"mixed": half}).alt
    assert "cat 1.00" in alt and "cat 0.50 flower 0.50" in alt
