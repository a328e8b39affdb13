"""Augmentation: what it costs here, mixtures as they are first written, and the figures."""

from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from course.data import default_set
from course.data.augment import OPERATIONS
from course.runs import recordings
from course.runs.run import Run
from labs import day3_2_augmentation as augmentation
from labs.day3_2_augmentation import figures
from labs.day3_2_augmentation import mixing_checks as mixing


@pytest.fixture
def batch(tiny_set: Path, monkeypatch: pytest.MonkeyPatch) -> augmentation.images.Batch:
    """Four small images of a small set."""
    monkeypatch.setattr(default_set, "ensure", lambda: tiny_set)
    return augmentation.batch(4, 32)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Run]:
    runs = recordings.recorded_runs("nvidia-h200", "augmentation")
    return {run.config.rung: run for run in runs}


def test_a_batch_has_labels_and_their_names(batch: augmentation.images.Batch) -> None:
    assert batch.images.shape == (4, 3, 32, 32) and batch.images.dtype == torch.uint8
    assert batch.labels.argmax(dim=1).tolist() == [0, 1, 2, 3]
    assert batch.labels.shape == (4, len(batch.classes))


def test_each_operation_alone(batch: augmentation.images.Batch) -> None:
    changed = augmentation.changed(batch.images[0])
    assert [*changed] == [*OPERATIONS]
    same = [name for name, image in changed.items() if torch.equal(image, batch.images[0])]
    assert same == ["identity"]


def test_costs_have_a_row_an_operation(batch: augmentation.images.Batch) -> None:
    costs = augmentation.operation_costs(batch.images[:1])
    assert costs["operation"].tolist() == [*OPERATIONS]
    assert (costs["ms"] > 0).all() and costs["ms"].idxmin() == 0  # identity


def test_work_of_an_image(tiny_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_set, "ensure", lambda: tiny_set)
    before = torch.get_rng_state()
    work = augmentation.work_per_image(4, 32)
    assert [*work.index] == ["load", "RandAugment"] and (work > 0).all()
    assert torch.equal(before, torch.get_rng_state())


def test_the_loop_mixes_as_it_should_but_one_by_one() -> None:
    np.random.seed(0)
    torch.manual_seed(0)
    few, many = (
        augmentation.operator_calls(
            partial(augmentation.one_by_one, *mixing._constants(count), 1.0)
        )
        for count in (8, 64)
    )
    assert many > 4 * few
    drawn = mixing._pasted(*mixing._mixed(augmentation.one_by_one, mixing._constants(64), 1.0))
    assert list(mixing._unlike_labels("cutmix", drawn)) == []


def test_operators_are_counted() -> None:
    one = torch.ones(2)
    assert augmentation.operator_calls(lambda: one + one + one) == 2


def test_turns_have_a_median_each() -> None:
    calls: list[str] = []
    ways = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    table = augmentation.in_turns(ways, rounds=3)
    assert table["way"].tolist() == ["a", "b"] and (table["ms"] >= 0).all()
    assert calls == ["a", "b"] * 4


def test_a_script_is_called_without_its_main() -> None:
    script = augmentation.script_functions("solutions/train.py")
    images, labels = script.mixup(torch.ones(4, 3, 8, 8), torch.eye(4), 1.0)
    assert images.shape == (4, 3, 8, 8) and labels.shape == (4, 4)


def test_what_was_learned(recorded: dict[str, Run]) -> None:
    table = augmentation.brought([recorded["none-seed-0"], recorded["cutmix-seed-1"]])
    assert len(table) == 40 and {*table["way"]} == {"none", "cutmix"}
    assert table["epoch"].tolist() == [*range(1, 21)] * 2
    assert table.groupby("way")["seed"].first().to_dict() == {"none": 0, "cutmix": 1}
    assert table["val_top1"].between(0, 1).all()


def test_epochs_have_sizes_and_times(recorded: dict[str, Run]) -> None:
    run = recorded["progressive-epochs"]
    table = augmentation.epochs(run)
    assert table["epoch"].tolist() == [1, 2, 3, 4]
    assert table["image_px"].tolist() == [128, 160, 192, 224]
    assert table["seconds"].sum() == pytest.approx(run.steps["step_s"].sum())
    rate = 256 * 64 / table["seconds"][0]
    assert table["images_per_s"][0] == pytest.approx(rate)


def test_pictures_are_told_in_words(
    batch: augmentation.images.Batch, recorded: dict[str, Run]
) -> None:
    costs = pd.DataFrame({"operation": [*OPERATIONS], "ms": 0.25})
    alt = figures.plot_operations(augmentation.changed(batch.images[0]), costs).alt
    assert all(f"{name} 0.25 ms" in alt for name in OPERATIONS)
    assert figures.plot_rows({"as they were": batch.images}).alt == "as they were; 4 images"
    half = (batch.images.float(), (batch.labels + batch.labels.roll(1, 0)) / 2)
    alt = figures.plot_mixed(batch, {"mixed": half}).alt
    assert "cat 1.00" in alt and "cat 0.50 flower 0.50" in alt
    alt = figures.plot_growing({"grown": augmentation.epochs(recorded["progressive-epochs"])}).alt
    assert "1: 128 px, 2.39 s" in alt and "4: 224 px" in alt
