"""Tables and pictures of ways that trade time for memory."""

from types import SimpleNamespace

import narrow
import pandas as pd
import pytest
import torch
from torch import nn

from course.analysis import memory
from course.config import rung
from course.training import models
from course.training.evidence.kept import Kept
from course.training.memory_prediction import Prediction
from labs import day4_1_memory as lab


def run(speed: float, gib: float, status: str = "ok", **own: object) -> SimpleNamespace:
    config = rung("large", batch_size=64, **own)
    record = SimpleNamespace(
        status=status,
        images_per_s=speed,
        peak_gib=gib,
        joules_per_image=None,
        error="",
        step_s=64 / speed if speed else None,
        evidence={"kept_gib": gib / 2},
    )
    return SimpleNamespace(config=config, record=record)


@pytest.fixture
def table() -> pd.DataFrame:
    return lab.ways(
        [
            run(100, 10),
            run(90, 6, micro_batch=16),
            run(70, 7, checkpointing="every"),
            run(60, 3, checkpointing="selective", micro_batch=16),
            run(0, 12, "oom", memory_gib=4),
        ]
    )


def test_a_way_in_words(table: pd.DataFrame) -> None:
    assert table["way"].tolist() == [
        "all kept",
        "16 at once",
        "every block again",
        "all but products again, 16 at once",
        "all kept",
    ]
    assert memory.memory_strategy(rung("large", offload=True, batch_size=8)) == "kept on the host"
    assert memory.memory_strategy(rung("large", micro_batch=64)) == "all kept"  # one pass


def test_passes_and_what_is_not_known(table: pd.DataFrame) -> None:
    assert table["pass_s"].round(3).tolist()[:2] == [0.64, 0.178]
    assert table["kept_gib"].isna().tolist() == [False, False, False, True, False]
    assert table["images_per_s"].isna().tolist() == [False] * 4 + [True]


def test_the_front_is_what_none_beats(table: pd.DataFrame) -> None:
    assert lab.is_best(table).tolist() == [True, True, False, True, False]


@pytest.mark.slow
def test_pictures(table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "create", narrow.create)
    assert lab.plot_front(table, "a GPU").axes[0].texts
    few = table[~table["way"].str.contains("again") & (table["status"] == "ok")]
    left, right = lab.plot_passes(few, "a GPU").axes
    assert len(left.patches) == 2 and len(right.lines) == 1
    held = lab.plot_held({"a": told(batch_size=2)})
    assert "GiB" in held.axes[0].texts[0].get_text()


MODEL = narrow.SHALLOW["vit_tiny_patch16_224"]  # of two blocks: one of them is every second
SMALL = {"model": MODEL, "image_px": 64, "batch_size": 32, "data": "synthetic"}


def told(**own: object) -> Prediction:
    return memory.predict(rung("large", **SMALL | own))


@pytest.mark.slow
def test_predict_knows_what_each_way_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "create", narrow.create)
    whole = told()
    parts, again = told(micro_batch=8), told(checkpointing="every")
    second, away = told(checkpointing="second"), told(offload=True)
    assert parts.activations_gib < 0.4 * whole.activations_gib
    assert parts.gradients_gib > 0.9 * parts.weights_gib  # those of the pass before are there
    assert again.activations_gib < second.activations_gib < whole.activations_gib
    assert away.activations_gib < 0.1 * whole.activations_gib
    assert told(micro_batch=4).peak_gib < parts.peak_gib


def test_what_is_kept_is_counted_once_and_without_weights() -> None:
    layer, images = nn.Linear(8, 8, bias=False), torch.randn(4, 8)
    kept = Kept()
    with kept:
        layer(images).relu().sum().backward()
    kept.end_pass()
    assert kept.gib * 2**30 == images.nbytes + 4 * 8 * 4  # the input, and ReLU's output
    with torch.autograd.graph.save_on_cpu(), Kept() as never:
        pass
    assert never.gib == 0


def test_only_weighed_micro_batches_give_the_gradient_of_the_batch() -> None:
    apart = lab.gradients_apart([3, 3, 3, 1]).set_index("norm")
    assert apart.loc["LayerNorm", "weighed"] < 1e-5 < 0.1 < apart.loc["LayerNorm", "mean_of_means"]
    assert apart.loc["BatchNorm", "weighed"] > 0.1


def test_a_block_that_runs_twice_has_its_side_effects_twice() -> None:
    table = lab.done_twice().set_index("what")
    mean, dropout = table.loc["running mean"], table.loc["gradient behind dropout"]
    assert mean["again"] == pytest.approx(1.9 * mean["whole"])  # the second step has momentum 0.1
    assert dropout["again"] == dropout["whole"]
    dropout = lab.done_twice(keep_random=False).set_index("what").loc["gradient behind dropout"]
    assert dropout["again"] != dropout["whole"]
