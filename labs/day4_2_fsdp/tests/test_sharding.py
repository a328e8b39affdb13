"""Who keeps what: the formula, the prediction, the layer by hand, what FSDP2 refuses."""

from dataclasses import astuple, replace

import narrow
import of_ranks
import pytest
from job_helpers import only, warm_up
from torch import distributed

from course.config import rung
from course.training import models
from labs import day4_2_fsdp as sharding
from labs.day4_2_fsdp import processes as ranks
from labs.day4_2_fsdp.configs import sharded_config
from labs.day4_2_fsdp.linear import STEPS
from labs.day4_2_fsdp.rank_checks import SMALL_VIT_SETTINGS


def test_each_stage_shares_out_one_kind_more() -> None:
    table = sharding.kept(1000, ranks=4).pivot(index="stage", columns="kind", values="gib")
    whole = table.loc[0]
    assert (table.loc[3] == whole / 4).all()
    assert (table.loc[1, ["weights", "gradients"]] == whole[["weights", "gradients"]]).all()
    assert table.loc[2, "gradients"] == whole["gradients"] / 4
    with pytest.raises(ValueError, match="stages=\\[4\\], ranks=2: choose of"):
        sharding.kept(1000, 2, [4])


@pytest.fixture
def forked(own_turns: None) -> None:
    """Ranks import PyTorch once."""
    warm_up()


@pytest.mark.slow
def test_more_ranks_keep_less_and_activations_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "create", narrow.create)
    config = rung("sharded", **SMALL_VIT_SETTINGS | {"device": "auto"})
    two, four = (sharding.predict(config, count) for count in (2, 4))
    assert four.weights_gib == pytest.approx(two.weights_gib / 2, rel=0.01)
    assert four.optimizer_gib == pytest.approx(two.optimizer_gib / 2, rel=0.01)
    assert four.peak_gib < two.peak_gib == pytest.approx(sum(astuple(two)[1:]), rel=1e-6)
    assert not distributed.is_initialized()
    same = sharding.predict(replace(config, shard=""), 2)  # DDP: whole weights, whole buckets
    assert same.weights_gib == pytest.approx(2 * two.weights_gib, rel=0.01)
    assert same.gradients_gib == same.weights_gib
    assert same.peak_gib == pytest.approx(sum(astuple(same)[1:]), rel=1e-6)
    with pytest.raises(ValueError, match="batch_size=8 is no multiple of 3 ranks"):
        sharding.predict(config, 3)


@pytest.mark.slow
def test_the_predicted_peak_is_close_to_the_recorded_one() -> None:
    recorded = sharding.ways(sharding.recorded()).loc["zero3-bf16", "peak_gib"]
    assert sharding.predict(sharded_config(2, policy=True), 2).peak_gib == pytest.approx(
        recorded, rel=0.05
    )


@pytest.mark.slow
def test_a_layer_by_hand_trains_as_the_whole_one(forked: None) -> None:
    table = sharding.by_hand()
    assert len(table) == STEPS and table["apart"].max() < 1e-5
    assert table.attrs["whole"] == 2 * table.attrs["kept"]
    with pytest.raises(ValueError, match="ranks=3"):
        sharding.by_hand(3)


@pytest.mark.slow
def test_without_a_server_ranks_are_new_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    only("cold", monkeypatch)
    table = sharding.by_hand(ranks=1)
    assert table["apart"].max() < 1e-5 and table.attrs["whole"] == table.attrs["kept"]


@pytest.mark.slow
def test_gradients_that_are_not_sent_are_whole(forked: None) -> None:
    table = sharding.accumulated()
    assert table["gradient_mib"].iloc[1] == pytest.approx(2 * table["gradient_mib"].iloc[0])
    assert table["norm"].iloc[0] == pytest.approx(table["norm"].iloc[1], rel=1e-4)
    assert table["reduce_scatters"].tolist() == [16, 4]


@pytest.mark.slow
def test_the_rank_that_failed_is_told(forked: None) -> None:
    with pytest.raises(RuntimeError, match="rank 1 of 2 failed: ValueError: it is mine"):
        ranks.on_ranks(of_ranks.fails_on_one, 2)


@pytest.mark.slow
def test_ranks_on_the_cpu_find_no_gpu(forked: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    assert ranks.on_ranks(of_ranks.visible_gpus, 2) == ["", ""]


def test_what_is_refused() -> None:
    said = sharding.refused()["said"]
    assert "non-contiguous" in said["weights channels last"]
    assert said["BatchNorm, bf16 by a policy"].startswith("RuntimeError")
    assert (
        said[["weights contiguous, images channels last", "BatchNorm, bf16 by autocast"]] == ""
    ).all()
