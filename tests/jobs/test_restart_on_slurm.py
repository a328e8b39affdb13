"""A training that Slurm preempts, and one that is killed while it saves: they go on to the bit."""

from dataclasses import replace
from pathlib import Path

import pytest
from job_helpers import (
    SITES,
    eventually,
    launch,
    narrow_solution,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
    slurm_says,
)

from course.config import rung
from course.jobs import launch as jobs
from course.runs import logs

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]
# So slow that somebody can come between two steps, and with as many threads wherever it runs.
SLOW = """
from time import sleep
torch.set_num_threads(1)
in_no_time = Meter.lap
Meter.lap = lambda *phase, **loss: sleep(0.05 * bool(loss)) or in_no_time(*phase, **loss)
"""
TRAINED = rung(
    "restarted",
    quick=True,
    model="resnet18",
    data="synthetic",
    image_px=32,
    batch_size=4,
    precision="fp32",
    schedule="cosine",
    mix="mixup",
    deterministic=True,
    steps=100,
    warmup_steps=4,
    val_steps=0,
    budget_s=0.0,
    save_every=30,
    sigkill_step=75,  # in the midst of the checkpoint behind step 90, if nothing saves before it
)


def test_a_preempted_training_goes_on_to_the_bit(
    tmp_path: Path, runs_root: Path, user_sites: Path
) -> None:
    user_sites.write_text(SITES)
    script = narrow_solution(tmp_path, SLOW, "train_restarted.py")
    run = jobs.launch(script, TRAINED, site="slurm")
    whole = jobs.launch(script, replace(TRAINED, save_every=0, sigkill_step=0))
    eventually(lambda: jobs.steps_done(run) > 5, "it trains")
    urgent = over(launch("ok_light.py", site="urgent", gpus=2))
    assert urgent.status == "ok", jobs.explain(urgent)
    saved = [*(run.folder / "checkpoints").iterdir()]
    number = run.launched["job_id"]
    eventually(lambda: jobs.refresh(run) == "queued", "Slurm has put it back")
    slurm_says("scontrol", "update", f"jobid={number}", "starttime=now")
    assert over(run).status == "ok", jobs.explain(run)
    # When SIGTERM came, it finished its step and saved.
    last = max(int(path.stem.removeprefix("step-")) for path in saved)
    assert 5 < last < 75
    seen = run.record.evidence
    assert [each["how"] for each in seen["interrupted"]] == ["SIGKILL"]
    # What it was killed in was never taken for a checkpoint.
    assert (
        seen["began_at"] == max(last, 60)
        and {"name": ".draft", "step": None, "whole": False} in (seen["found"])
    )
    assert "asked to end" in logs.text(run)
    assert over(whole).status == "ok", jobs.explain(whole)
    assert run.steps["loss"].tolist() == whole.steps["loss"].tolist()
    assert seen["at_end"] == whole.record.evidence["at_end"]
