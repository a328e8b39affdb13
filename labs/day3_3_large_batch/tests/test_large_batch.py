"""The gradient's noise: found where it is known, and nothing changed by looking."""

import math

import pandas as pd
import pytest
import torch
from cases import for_all
from torch import nn

from course import plots
from course.config import rung
from course.runs import recordings
from labs import day3_3_large_batch as large_batch
from labs.day3_3_large_batch import configs as learning
from labs.day3_3_large_batch.gradient_noise import Noise
from labs.day3_3_large_batch.trainings import Search, rates


def known(model: nn.Linear, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """The square of the mean gradient over all images, and the variance of one image's."""
    each = []
    for image, label in zip(images, labels):
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        each.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())]))
    gradients = torch.stack(each)
    return float(gradients.mean(0).square().sum()), float(gradients.var(0).sum())


def test_noise_and_gradient_are_those_of_all_images() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    images, labels = torch.randn(4000, 6) + 1, torch.randint(3, (4000,))
    gradient, noise = known(model, images, labels)
    batches = [(images[a : a + 64], labels[a : a + 64]) for a in range(0, 4000 - 64, 64)]
    found = large_batch.noise(model, batches)
    assert found.noise == pytest.approx(noise, rel=0.1)
    assert found.gradient == pytest.approx(gradient, rel=0.2)
    assert found.scale == pytest.approx(noise / gradient, rel=0.3)
    assert found.steps == len(batches)


def test_equal_images_have_no_noise() -> None:
    model = nn.Linear(6, 3)
    found = large_batch.noise(model, [(torch.ones(8, 6), torch.zeros(8, dtype=torch.long))])
    assert found.noise == pytest.approx(0, abs=1e-5) and found.scale < 1e-3


def test_looking_changes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    large_batch.noise(model, [(torch.randn(16, 3, 6, 6), torch.randint(2, (16,)))], parts=4)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())


def test_what_a_batch_takes() -> None:
    noise = Noise(noise=1000.0, gradient=1.0, steps=1)
    assert noise.scale == 1000
    assert noise.updates(1000) == 2 and noise.images(1000) == 2
    assert noise.updates(1e9) == pytest.approx(1) and noise.images(1) == pytest.approx(1.001)
    assert Noise(1.0, -0.1, 1).scale == math.inf


@for_all(
    "batches, parts, said",
    [
        ([], 8, "no batch"),
        ([(torch.ones(9, 6), torch.zeros(9, dtype=torch.long))], 8, "a batch of 9 in parts=8"),
        ([(torch.ones(9, 6), torch.zeros(9, dtype=torch.long))], 1, "2 or more"),
    ],
)
def test_bad_batches_are_named(batches: list, parts: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        large_batch.noise(nn.Linear(6, 3), batches, parts)


def recorded_search(size: int) -> Search:
    runs = recordings.recorded_runs("nvidia-h200", "learning")
    (run,) = (run for run in runs if run.config.rung == f"find-{size}-10")
    return large_batch.search(run)


def test_a_search_ends_where_the_loss_leaves_all_bounds() -> None:
    for size in (256, 8192):
        found = recorded_search(size)
        assert found.table["lr"].is_monotonic_increasing
        assert found.steepest < found.lowest < found.table["lr"].max()


def test_what_searched_nothing_is_refused() -> None:
    run = recordings.recorded_runs("nvidia-h200", "learning")[0]
    with pytest.raises(ValueError, match='a search has "find"'):
        large_batch.search(run)
    with pytest.raises(ValueError, match="has no weights.pt: launch it with save_weights=True"):
        large_batch.network(run)
    with pytest.raises(ValueError, match="0 batch sizes reach the loss 0: three are needed"):
        large_batch.critical([run], 0.0)


def test_the_law_is_found_again() -> None:
    class Pretended:
        """A training that reaches the loss 1 after as many updates as the law says."""

        def __init__(self, size: int, lr: float, late: int = 0) -> None:
            self.config = learning.crops_config(size, lr)
            updates = round(100 * (1 + 500 / size)) + late
            self.steps = pd.DataFrame({"step": range(2000)})
            self.steps["loss"] = [2.0 if step < updates - 1 else 0.0 for step in range(2000)]

    runs = [Pretended(size, 0.1) for size in learning.BATCHES]
    found = large_batch.critical([*runs, Pretended(256, 0.3, late=50)], 0.7)
    assert found.size == pytest.approx(500, rel=0.02)
    assert found.least == pytest.approx(100, rel=0.02)
    assert {*found.table["lr"]} == {0.1}


def test_of_trainings_that_shared_the_gpu_no_time_is_kept() -> None:
    for run in recordings.recorded_runs("nvidia-h200", "learning"):
        assert run.record.images_per_s is run.record.step_s is run.record.wall_s is None
        assert [*run.steps] == ["step", "epoch", "loss", "lr"] and len(run.steps) <= 128


def test_rates_are_those_that_a_run_had() -> None:
    runs = {run.config.rung: run for run in recordings.recorded_runs("nvidia-h200", "learning")}
    for name in ("sgd-8192-0.3", "cosine-8192-0.3", "one-cycle-8192-0.3", "warm-up-8192-0.3"):
        steps = runs[name].steps
        due = rates(runs[name].config)
        assert steps["lr"].tolist() == pytest.approx([due[step] for step in steps["step"]])


def test_lars_and_lamb_move_each_layer_alike() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 30), nn.ReLU(), nn.Linear(30, 3))
    before = [each.clone() for each in model.parameters()]
    batch = torch.randn(64, 6), torch.randint(3, (64,))
    configs = [rung("device", optimizer=name, lr=0.1) for name in ("sgd", "lars", "lamb")]
    table = large_batch.update_sizes(model, batch, configs)
    ratios = table.groupby("optimizer")["ratio"].agg(lambda each: each.max() / each.min())
    assert ratios["lars"] < 1.05 and ratios["lamb"] < 1.05 and ratios["sgd"] > 1.2
    assert [*table["layer"]] == [1, 2] * 3
    for one, other in zip(model.parameters(), before):
        assert torch.equal(one, other)


def test_pictures_say_what_they_show() -> None:
    runs = recordings.recorded_runs("nvidia-h200", "learning")
    ends = large_batch.ends(run for run in runs if run.config.rung.startswith("sgd"))
    shown = large_batch.plot_grid(ends[ends["seed"] == 0])
    assert "256 images at 0.3: 0.81" in shown.alt
    measured = large_batch.critical([run for run in runs if "sgd" in run.config.rung], 1.8)
    shown = large_batch.plot_useful(measured, {"new": Noise(200, 1, 4)})
    assert "new: 200 images" in shown.alt
    seeds = large_batch.learned(run for run in runs if run.config.rung.startswith("sgd-256-0.3"))
    (axes,) = plots.plot_learning_curves({"256": seeds}, [("epoch", "val_top1")]).axes
    means = seeds.groupby("epoch")["val_top1"].mean()
    assert [*axes.lines[0].get_ydata()] == pytest.approx([*means])
