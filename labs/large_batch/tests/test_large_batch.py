"""Tests of updates, the fits to recorded training runs, and the figures."""

import pandas as pd
import pytest
import torch
from torch import nn

from course.config import rung
from course.runs.recordings import recorded_runs
from labs import large_batch as lab
from labs.large_batch.configs import BATCHES, crops_config
from labs.large_batch.measurements import (
    fit_critical_batch,
    read_rate_search,
    relative_update_sizes,
)

RECORDED = {run.config.rung: run for run in recorded_runs("nvidia-h200", "learning")}


def test_measuring_does_not_change_the_model() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    batch = torch.randn(16, 3, 6, 6), torch.randint(2, (16,))
    configs = [rung("device", optimizer=name, lr=0.1) for name in ("sgd", "lars", "lamb")]
    ratios = relative_update_sizes(model, batch, configs).groupby("optimizer")["ratio"]
    assert all(torch.equal(w, before[name]) for name, w in model.named_parameters())
    spread = ratios.max() / ratios.min()
    assert spread["lars"] < 1.05 and spread["lamb"] < 1.05 and spread["sgd"] > 1.2


def test_a_search_ends_before_the_loss_diverges() -> None:
    search = read_rate_search(RECORDED["find-8192-10"])
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
    fit = fit_critical_batch([*runs, SyntheticRun(256, 0.3, delay=50)], 0.7)
    assert (fit.size, fit.least) == (pytest.approx(500, rel=0.02), pytest.approx(100, rel=0.02))
    assert {*fit.table["lr"]} == {0.1}


def test_alt_texts_contain_the_values() -> None:
    grid = [run for name, run in RECORDED.items() if name.startswith("sgd") and "seed" not in name]
    assert "256 images at 0.3: 0.81" in lab.plot_grid(lab.final_epochs(grid)).alt
    assert "new: 200 images" in lab.plot_updates_needed(grid, {"new": 200.0}).alt
    assert "x: lowest loss at 1.3" in lab.plot_rate_searches({"x": RECORDED["find-256-10"]}).alt
