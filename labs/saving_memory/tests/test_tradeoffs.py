"""Tests of the table of strategies, figures, gradients, and predicted memory."""

from types import SimpleNamespace

import narrow
import pandas as pd
import pytest
import torch
from torch import nn

from course.config import rung
from course.runs.evidence import Evidence
from course.training import models
from course.training.evidence.operators import Kept
from course.training.memory_prediction import predict_memory
from labs import saving_memory as lab


def run(speed: float, gib: float, status: str = "ok", **settings: object) -> SimpleNamespace:
    record = SimpleNamespace(
        status=status,
        images_per_s=speed,
        peak_gib=gib,
        joules_per_image=None,
        error="",
        step_s=64 / speed if speed else None,
        evidence=Evidence(kept_gib=gib / 2),
    )
    return SimpleNamespace(config=rung("large", batch_size=64, **settings), record=record)


@pytest.fixture
def table() -> pd.DataFrame:
    return lab.memory_strategies(
        [
            run(100, 10),
            run(90, 6, micro_batch=16),
            run(70, 7, checkpointing="every"),
            run(60, 3, checkpointing="selective", micro_batch=16),
            run(0, 12, "oom", memory_gib=4),
        ]
    )


def test_table_of_strategies(table: pd.DataFrame) -> None:
    assert table["strategy"].tolist() == [
        "all kept",
        "16 per pass",
        "every block recomputed",
        "cheap operators recomputed, 16 per pass",
        "all kept",
    ]
    assert table["pass_s"].round(3).tolist()[:2] == [0.64, 0.178]
    assert lab.on_pareto_front(table).tolist() == [True, True, False, True, False]


def test_figures_name_strategies_and_values(table: pd.DataFrame) -> None:
    texts = [text.get_text() for text in lab.plot_pareto_front(table, "a GPU").axes[0].texts]
    assert "64 per pass" in texts and "every block" in texts
    assert "16: 90, 64: 100" in lab.plot_micro_batches(table.iloc[:2], "a GPU").alt


@pytest.mark.slow
def test_predicted_activations_of_each_strategy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "create", narrow.create)
    model = narrow.SHALLOW["vit_tiny_patch16_224"]  # it has two blocks
    small = {"model": model, "image_px": 64, "batch_size": 32, "data": "synthetic"}
    strategies = {
        "plain": {},
        "split": {"micro_batch": 8},
        "every": {"checkpointing": "every"},
        "second": {"checkpointing": "second"},
        "offload": {"offload": True},
    }
    predictions = {
        name: predict_memory(rung("large", **small, **settings))
        for name, settings in strategies.items()
    }
    gib = {name: prediction.activations_gib for name, prediction in predictions.items()}
    assert gib["split"] < 0.4 * gib["plain"] and gib["offload"] < 0.1 * gib["plain"]
    assert gib["every"] < gib["second"] < gib["plain"]
    assert "GiB" in lab.plot_memory_parts(predictions).alt


@pytest.mark.slow
def test_a_timeline_has_the_predicted_peak_and_shows_what_checkpointing_frees() -> None:
    small = {"image_px": 64, "batch_size": 128, "data": "synthetic"}
    small["model"] = "vit_tiny_patch16_224"
    config, every = rung("large", **small), rung("large", **small, checkpointing="every")
    tables = {
        "plain": lab.memory_timeline(config),
        "every": lab.memory_timeline(every),
    }
    peaks = {name: table["gib"].max() for name, table in tables.items()}
    assert peaks["plain"] == pytest.approx(predict_memory(config).peak_gib, rel=0.01)
    assert peaks["every"] == pytest.approx(predict_memory(every).peak_gib, rel=0.01)
    assert peaks["every"] < 0.7 * peaks["plain"]
    assert [*tables["every"]["phase"].unique()] == ["forward", "backward", "optimizer"]
    assert "when backward begins" in lab.plot_timelines(tables).alt


def test_kept_tensors_count_once_and_without_weights() -> None:
    layer, images = nn.Linear(8, 8, bias=False), torch.randn(4, 8)
    with Kept() as kept:
        layer(images).relu().sum().backward()
    kept.end_pass()
    assert kept.gib * 2**30 == images.nbytes + 4 * 8 * 4  # the input, and ReLU's output
