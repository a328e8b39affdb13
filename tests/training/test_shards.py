"""A network in shards: its evidence, configs that are refused, and the same training result."""

from pathlib import Path

import pytest
from job_helpers import (
    narrow_solution,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
)

from course.checks.lab_configs import SMALL_VIT_SETTINGS
from course.checks.script_variants import script_variant
from course.config import rung
from course.jobs.launch import launch


@pytest.fixture
def same(tmp_path: Path, runs_root: Path) -> Path:
    """Write the solution without random crops: with any number of ranks it gets the same pixels."""
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

    def trained(gpus: int, **changes: object):
        return launch(same, rung("sharded", quick=True, **size | changes), gpus=gpus).wait()

    first = trained(4, save_shards=True)
    runs = {
        "one": trained(1, shard="", epochs=2),
        "hybrid": trained(4, shard="hybrid", epochs=2),
        "resumed": trained(2, epochs=2, resume=first.name),
    }
    losses = {name: [*run.steps["loss"]] for name, run in runs.items()}
    assert losses["hybrid"] == pytest.approx(losses["one"], rel=1e-4)
    assert losses["resumed"] == pytest.approx(losses["one"][2:], rel=1e-4)
    kept = {name: vars(run.evidence().spread.bytes) for name, run in runs.items()}
    kept["four"] = vars(first.evidence().spread.bytes)
    for name, parts in {"four": 4, "hybrid": 2}.items():
        ratios = [kept["one"][kind] / size for kind, size in kept[name].items()]
        assert ratios == pytest.approx([parts] * len(ratios), rel=0.05)
