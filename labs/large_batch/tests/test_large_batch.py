"""Tests of the gradient noise, the fits to recorded training runs, and the figures."""

import pandas as pd
import pytest
import torch
from torch import nn

from course.config import rung
from course.runs.recordings import recorded_runs
from labs import large_batch as lab
from labs.large_batch.configs import BATCHES, crops_config
from labs.large_batch.measurements import GradientNoise, scheduled_rates

RECORDED = {run.config.rung: run for run in recorded_runs("nvidia-h200", "learning")}


def test_noise_equals_that_of_all_single_images() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    images, labels = torch.randn(2000, 6) + 1, torch.randint(3, (2000,))
    gradients = []
    for image, label in zip(images, labels):
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        weights = torch.autograd.grad(loss, model.parameters())
        gradients.append(torch.cat([weight.flatten() for weight in weights]))
    gradients = torch.stack(gradients)
    noise = lab.estimate_noise(model, zip(images.split(80), labels.split(80)))
    assert noise.variance == pytest.approx(float(gradients.var(0).sum()), rel=0.1)
    assert noise.gradient == pytest.approx(float(gradients.mean(0).square().sum()), rel=0.2)


def test_measuring_does_not_change_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = torch.randn(16, 3, 6, 6), torch.randint(2, (16,))
    lab.estimate_noise(model, [batch])
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    configs = [rung("device", optimizer=name, lr=0.1) for name in ("sgd", "lars", "lamb")]
    ratios = lab.relative_update_sizes(model, batch, configs).groupby("optimizer")["ratio"]
    assert all(torch.equal(w, before[name]) for name, w in model.named_parameters())
    spread = ratios.max() / ratios.min()
    assert spread["lars"] < 1.05 and spread["lamb"] < 1.05 and spread["sgd"] > 1.2


def test_a_search_ends_before_the_loss_diverges() -> None:
    search = lab.read_rate_search(RECORDED["find-8192-10"])
    assert 0.1 < search.lowest < search.table["lr"].max()


class SyntheticRun:
    """A training whose loss falls from 2 to 0 after the number of updates in the law."""

    def __init__(self, size: int, lr: float, delay: int = 0) -> None:
        self.config = crops_config(size, lr)
        updates = round(100 * (1 + 500 / size)) + delay
        losses = [2.0] * (updates - 1) + [0.0] * 5
        self.steps = pd.DataFrame({"step": range(len(losses)), "loss": losses})


def test_critical_batch_is_fitted_to_the_fastest_rates() -> None:
    runs = [SyntheticRun(size, 0.1) for size in BATCHES]
    fit = lab.fit_critical_batch([*runs, SyntheticRun(256, 0.3, delay=50)], 0.7)
    assert (fit.size, fit.least) == (pytest.approx(500, rel=0.02), pytest.approx(100, rel=0.02))
    assert {*fit.table["lr"]} == {0.1}


def test_scheduled_rates_are_those_of_recorded_runs() -> None:
    for name in ("cosine-8192-0.3", "one-cycle-8192-0.3", "warm-up-8192-0.3"):
        steps, rates = RECORDED[name].steps, scheduled_rates(RECORDED[name].config)
        assert steps["lr"].tolist() == pytest.approx([rates[step] for step in steps["step"]])


def test_alt_texts_contain_the_values() -> None:
    grid = [run for name, run in RECORDED.items() if name.startswith("sgd") and "seed" not in name]
    assert "256 images at 0.3: 0.81" in lab.plot_grid(lab.final_epochs(grid)).alt
    fit = lab.fit_critical_batch(grid, 1.8)
    assert "new: 200 images" in lab.plot_updates_needed(fit, {"new": GradientNoise(200, 1)}).alt
    rates = {f"rate {rate}": crops_config(8192, rate) for rate in (0.3, 9.6)}
    assert "rate 9.6: from 1.92 to" in lab.plot_schedules(rates).alt
