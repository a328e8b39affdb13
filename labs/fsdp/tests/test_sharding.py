"""Tests of prediction and processes."""

import json
from dataclasses import replace

import narrow
import of_ranks
import pytest
import torch
from torch.distributed import fsdp

from course.analysis.ranks import on_ranks
from course.checks import discovery
from course.config import rung
from course.lab import configs
from course.training import models
from labs import fsdp as lab
from labs.fsdp.configs import sharded_config


@pytest.mark.slow
def test_more_ranks_keep_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(models, "create", narrow.create)
    config = rung("sharded", **configs.SMALL_VIT_SETTINGS | {"device": "auto"})
    two, four = (lab.predict_rank_memory(config, ranks) for ranks in (2, 4))
    assert four.weights_gib == pytest.approx(two.weights_gib / 2, rel=0.01)
    assert four.optimizer_gib == pytest.approx(two.optimizer_gib / 2, rel=0.01)
    ddp = lab.predict_rank_memory(replace(config, shard=""), 2)
    assert ddp.weights_gib == pytest.approx(2 * two.weights_gib, rel=0.01)
    with pytest.raises(ValueError, match="batch_size=8: expected a multiple of 3 ranks"):
        lab.predict_rank_memory(config, 3)


@pytest.mark.long  # half a minute: CoAtNet-5 with 688 million weights
def test_predicted_peak_is_close_to_the_recorded_one() -> None:
    recorded = lab.compare_with_ddp(lab.sharding_runs()).loc["zero3-bf16", "peak_gib"]
    prediction = lab.predict_rank_memory(sharded_config(2, gather_bf16=True), 2)
    assert prediction.peak_gib == pytest.approx(recorded, rel=0.05)


@pytest.mark.slow
def test_processes_report_the_rank_that_failed() -> None:
    with pytest.raises(RuntimeError, match="rank 1 of 2 failed: ValueError: it is mine"):
        on_ranks(of_ranks.fails_on_one, 2)


@pytest.mark.slow
def test_processes_run_a_function_that_no_module_defines() -> None:
    assert on_ranks(lambda rank, ranks: (rank, ranks), 2) == [(0, 2), (1, 2)]


def test_notebook_shows_fp32_weights_that_compute_in_bf16(capsys: pytest.CaptureFixture) -> None:
    cells = json.loads(discovery.notebook_of("fsdp").read_text())["cells"]
    texts = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    (cell,) = [text for text in texts if text.startswith("policy = MixedPrecisionPolicy(")]
    exec(cell, vars(fsdp) | {"torch": torch, "nn": torch.nn, "lab": lab})
    assert capsys.readouterr().out == "stored: torch.float32, computed: torch.bfloat16\n"
