"""A pipeline over two nodes of the real Slurm, until a rank dies: the other is told in time."""

import time
from pathlib import Path

import numpy as np
import pytest
from job_helpers import (
    eventually,
    narrow_solution,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
    slurm_says,
)

from course.config import rung
from course.jobs import launch as jobs
from course.runs import ranks
from labs.day4_3_model_parallel.stage_checks import CHECKS

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("slurm")]
TOLD_S = 15
STEPS, DIES_AT = 8, 5
# One rank is ended from outside in its sixth step, as by a node that fails: it says nothing.
DIES = f"""
import os, signal
from pathlib import Path
from course.training.meter import Meter
whole = Meter.lap
def lap(self, phase, **named):
    if (self.run.rank, self.step, phase) == (1, {DIES_AT}, "load"):
        Path("died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    whole(self, phase, **named)
Meter.lap = lap
"""


def test_it_trains_over_both_and_a_rank_that_dies_is_told(
    tmp_path: Path, runs_root: Path, user_sites: Path
) -> None:
    user_sites.write_text("[slurm]\ngpus_per_node = 1\n")
    script = narrow_solution(tmp_path, DIES, "train_parallel.py")
    small = CHECKS["day4.stages"].settings | {"data": "synthetic", "steps": STEPS, "val_steps": 0}
    config = rung("pipeline", quick=True, **small | {"device": "cpu"})
    run = over(jobs.launch(script, config, site="slurm", gpus=2))
    ended = time.time()
    assert ended - (run.folder / "died").stat().st_mtime < TOLD_S
    assert run.status == "lost" and "killed by SIGKILL" in run.record.error
    words = ("sacct", "-X", "-n", "-P", "-j", run.launched["job_id"], "-o", "NodeList")
    # Until accounting has heard that the job began, it names the first one.
    eventually(lambda: slurm_says(*words) == "node[1-2]", "accounting knows both nodes", 60)
    losses = run.steps["loss"].to_numpy(float)  # what both nodes computed until then
    # The rank that died is the one that knows losses: those not yet written are lost with it.
    known = losses[: np.isfinite(losses).sum()]
    assert len(losses) == DIES_AT and len(known) > 0
    assert np.isfinite(known).all() and (np.diff(known) < 0).all()
    left, died = ranks.rank_table(run).to_dict("records")
    assert left["status"] == "failed" and "A different rank ended" in left["error"]
    assert (died["status"], died["error"]) == ("", "")  # it had no time to say anything
