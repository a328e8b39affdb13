"""A network in shards: what is seen of it, what configs refuse, that it trains as a whole one."""

from pathlib import Path

import pytest
import torch
from job_helpers import (
    narrow_solution,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
)

from course.checks.exercises import script_variant
from course.checks.rank_checks import SMALL_VIT_SETTINGS
from course.config import rung
from course.jobs.launch import launch, wait
from course.training.evidence import shards
from course.training.evidence.saving import Held
from labs import day4_2_fsdp as sharding

FOUR = torch.ones(4)


def test_gathers_are_counted_between_computations() -> None:
    order = shards.Order()
    for name in ("gather", "compute", "gather", "gather", "compute", "compute", "gather"):
        if name == "compute":
            order.computed("forward")
        else:
            order.sent("forward", "_allgather_base", FOUR)
    order.sent("backward", "_reduce_scatter_base", FOUR.bfloat16())
    found = order.evidence()
    assert found["gathers"] == {"forward": [1, 2, 1]}
    assert found["gathered_types"] == {"float32": 4} and found["reduced_types"] == {"bfloat16": 1}
    assert shards.Order().evidence() == {}


def test_whole_weights_are_known_by_their_sizes() -> None:
    assert shards.size([FOUR, 3, FOUR.bfloat16()]) == 16 + 8
    assert shards.placed([FOUR]) == {"placements": {"whole": 1}, "mesh": [], "among": []}


def test_what_is_held_at_a_time_is_counted() -> None:
    with Held() as held:
        for _ in range(3):
            kept = FOUR + 1  # the one before goes as this one comes
        kept = [FOUR + each for each in range(4)]
    assert 4 * 16 <= held.most <= 5 * 16 and len(kept) == 4


@pytest.fixture
def same(tmp_path: Path, runs_root: Path) -> Path:
    """The solution without random crops: all numbers of ranks see the same pixels."""
    lines = {"sets = image_sets(cfg)": "sets.train.transform = sets.val.dataset.transform"}
    script = narrow_solution(tmp_path, "narrow.tiny_networks.DEPTH = 2\n", "train_sharded.py")
    return script_variant("same-pixels", lines, str(script))


@pytest.mark.slow
def test_any_number_of_ranks_trains_alike_and_goes_on_alike(same: Path, tiny_set: Path) -> None:
    size = SMALL_VIT_SETTINGS | {
        "device": "cpu",
        "data": "imagenet",
        "data_root": str(tiny_set),
        "steps": 2,
        "val_steps": 0,
        "fused": True,
        "collective_timeout_s": 30,
    }

    def trained(gpus: int, **own: object):
        return wait(launch(same, rung("sharded", quick=True, **size | own), gpus=gpus))

    first = trained(4, save_shards=True)
    runs = {
        "one": trained(1, shard="", epochs=2),
        "hybrid": trained(4, shard="hybrid", epochs=2),
        "resumed": trained(2, epochs=2, resume=first.name),
    }
    losses = sharding.losses_table(runs)
    assert [*losses["hybrid"]] == pytest.approx([*losses["one"]], rel=1e-4)
    assert losses["resumed"].first_valid_index() == 2
    assert [*losses["resumed"][2:]] == pytest.approx([*losses["one"][2:]], rel=1e-4)
    kept = sharding.measured_memory({"four": first, **runs}).pivot_table("mib", "run", "kind")
    ratio = kept.loc["one"] / kept.loc[["four", "hybrid"]]
    assert ratio.loc["four"].to_numpy() == pytest.approx(4, rel=0.05)
    assert ratio.loc["hybrid"].to_numpy() == pytest.approx(2, rel=0.05)


@pytest.mark.slow
def test_a_checkpoint_that_is_not_there_is_named(same: Path, tiny_set: Path) -> None:
    size = SMALL_VIT_SETTINGS | {"device": "cpu", "data": "imagenet", "data_root": str(tiny_set)}
    config = rung("sharded", quick=True, **size, shard="", resume="none")
    run = wait(launch(same, config), check=False)
    assert run.status == "failed"
    assert "resume='none': there is no whole checkpoint" in run.record.error
