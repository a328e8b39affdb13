"""A run goes on from its newest checkpoint: by hand, and on another number of ranks."""

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from job_helpers import (
    CONFIG,
    SHORT,
    eventually,
    narrow_solution,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
    prepared,
    printed,
    steps_script,
)
from typer.testing import CliRunner

from course.cli.runs import app
from course.config import Config, rung
from course.jobs import launch as jobs
from course.runs.restarts import BEST
from course.runs.run import all_runs

# Until the file exists, a step takes long enough for the test to cancel the run within an epoch.
SLOW = """
import time
from pathlib import Path
def slow(self, phase, loss=None, lap=Meter.lap):
    lap(self, phase, loss)
    if phase == "optimizer" and self.step > 6 and not Path("../fast").exists():
        time.sleep(0.5)
Meter.lap = slow
"""


def config_of(root: Path, **settings: Any) -> Config:
    """Return a config of three epochs of four steps."""
    return rung(
        "device",
        quick=True,
        **settings,
        data="imagenet",
        data_root=str(root),
        image_px=32,
        batch_size=6,
        epochs=3,
        steps=4,
        warmup_steps=1,
        val_images=6,
        precision="fp32",
        device="cpu",
        save_every=1000,
    )


def test_a_run_that_was_too_long_goes_on_when_it_is_launched_again(
    tmp_path: Path, runs_root: Path, small_set: Path
) -> None:
    script = narrow_solution(tmp_path, SLOW)
    config = config_of(small_set, model="resnet18")
    first = jobs.launch(script, config, time_min=60)
    eventually(lambda: jobs.steps_done(first) > 6, "it trains")
    # As at its time limit, which may be short here only once PyTorch is imported.
    os.kill(first.started["supervisor"][0], signal.SIGUSR1)
    assert over(first).status == "timeout"
    assert "Launch it again: it continues from its last checkpoint" in first.record.error
    (runs_root / "fast").touch()
    second = over(jobs.launch(script, config))
    assert second.status == "ok", second.explain()
    assert "continues from the checkpoint after step" in printed(second)
    assert second.steps["step"].tolist() == [*range(12)]


SHARDED = {"model": "vit_tiny_patch16_224", "shard": "zero3", "async_save": True}


@pytest.mark.parametrize(
    ("name", "settings", "other_model"),
    [
        ("train.py", {"model": "resnet18", "mix": "mixup"}, "resnet34"),
        ("train_sharded.py", SHARDED, "coatnet_pico_rw_224"),
    ],
    ids=["train.py", "train_sharded.py"],
)
def test_a_run_goes_on_with_another_number_of_ranks(
    tmp_path: Path, runs_root: Path, small_set: Path, name: str, settings: dict, other_model: str
) -> None:
    config = config_of(small_set, **settings)
    script = narrow_solution(tmp_path, SLOW, name)
    first = jobs.launch(script, config, gpus=2)
    eventually(lambda: jobs.steps_done(first) > 6, "it trains")
    jobs.cancel([first])
    assert first.status == "cancelled" and (first.folder / BEST).exists()
    (runs_root / "fast").touch()
    result = CliRunner().invoke(app, ["resume", first.name, "--gpus", "3"])
    assert result.exit_code == 0, result.output
    (second,) = [run for run in all_runs() if run.name != first.name]
    assert second.gpus == 3 and second.source == first.source
    step = int(printed(second).partition("checkpoint after step ")[2].split()[0])
    assert 6 < step < 12
    assert second.steps["step"].tolist() == [*range(12)]
    losses = [run.steps["loss"].tolist()[:step] for run in (second, first)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-12)
    assert len(second.record.epochs) == 3 and (second.folder / BEST).exists()
    longer = over(jobs.resume(second, {"epochs": 4}, gpus=1))
    assert longer.status == "ok", longer.explain()
    assert longer.steps["step"].tolist() == [*range(16)]
    refused = over(jobs.resume(second, {"model": other_model}))
    assert f"model='{other_model}': the checkpoint after step 12" in refused.record.error
    with pytest.raises(ValueError, match="is complete: to train longer, set epochs"):
        jobs.resume(second)


def test_only_a_run_with_checkpoints_that_is_over_goes_on(tmp_path: Path, runs_root: Path) -> None:
    script = steps_script(tmp_path, before="import time; time.sleep(60)")
    running = jobs.launch(script, replace(SHORT, save_every=2))
    with pytest.raises(ValueError, match="has no checkpoint.*launch it with save_every=100"):
        jobs.resume(running)
    (running.folder / "checkpoints").mkdir()
    (running.folder / "checkpoints" / "step-000002.pt").touch()
    with pytest.raises(ValueError, match="cancel it first, or wait until it is over"):
        jobs.resume(running)
    jobs.cancel([running])
    for options, message in (
        ({"changes": {"save_every": 0}}, "would begin again at step 0. Set save_every=1 or more"),
        ({"site": "recorded-nvidia-h100"}, "starts no jobs: choose another one"),
        ({"gpus": 0}, "gpus=0: site 'local' takes 1 to"),
    ):
        with pytest.raises(ValueError, match=message):
            jobs.resume(running, **options)
    never = prepared(runs_root / "never", "", CONFIG)
    with pytest.raises(ValueError, match="never has no checkpoint"):
        jobs.resume(never)
