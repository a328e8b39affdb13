"""The GPT on a mesh: it trains like one process, and continues on another mesh."""

import os
import signal
from pathlib import Path

import pytest
import torch
from job_helpers import (
    eventually,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
)

from course.config import Config, rung
from course.jobs import launch as jobs
from course.jobs.plan import plan_run
from course.runs.restarts import METADATA, interruptions
from course.runs.run import PROJECT, Run

SCRIPT = PROJECT / "solutions/train_gpt.py"
SMALL = {"context": 16, "batch_size": 8, "epochs": 1, "steps": 6, "warmup_steps": 1, "val_steps": 1}
SMALL |= {"device": "cpu", "layers": 2, "heads": 4, "width": 16, "lr_warmup": 0, "lr": 0.02}
SMALL |= {"schedule": "", "clip": 0.5, "collective_timeout_s": 60}
# On a mesh, the same terms are added in another order: a sum of n terms then differs by √n
# roundings if these are random, and the longest sums are over the vocabulary. AdamW divides a
# gradient by its own size, so a weight's change, and the fall of the loss, differ as much.
TOLERANCE = 50257**0.5 * torch.finfo(torch.float32).eps


def config(**changes: object) -> Config:
    return rung("gpt", **SMALL | changes)


def train(cfg: Config, gpus: int, script: Path = SCRIPT) -> Run:
    run = over(jobs.launch(script, cfg, gpus=gpus))
    assert run.status == "ok", run.explain()
    return run


def losses(run: Run) -> list[float]:
    return run.steps["loss"].tolist()


@pytest.mark.parametrize(
    ("ranks", "tensor", "placed"),
    [
        (4, 1, {"Shard(dim=0)": 28}),
        (4, 2, {"_StridedShard(dim=0, sf=2), Shard(dim=0)": 8, "Shard(dim=0), Shard(dim=1)": 4}),
        pytest.param(4, 4, {}, marks=pytest.mark.long),
    ],
)
def test_a_mesh_trains_like_one_process(
    runs_root: Path, ranks: int, tensor: int, placed: dict[str, int]
) -> None:
    one = train(config(), 1)
    mesh = train(config(shard="zero3", tensor=tensor), ranks)
    assert losses(one)[-1] < losses(one)[0] - 0.5
    assert losses(mesh) == pytest.approx(losses(one), rel=TOLERANCE)
    assert mesh.record.val_loss == pytest.approx(one.record.val_loss, rel=TOLERANCE)
    evidence = [mesh.evidence(rank) for rank in range(ranks)]
    assert evidence[0].spread.placements.items() >= placed.items()
    assert {item.share for item in evidence} == {8 * tensor // ranks}
    for rank, item in enumerate(evidence):  # neighbours share layers, and get the same sequences
        first = rank // tensor * tensor
        assert item.taken == evidence[first].taken
        group = str([*range(first, first + tensor)])
        due = {group: 2 * 2} if tensor > 1 else {}  # after attention and after the MLP of two blocks
        assert (item.forward_groups, item.backward_groups) == (due, due)
    assert evidence[0].taken != evidence[-1].taken or tensor == ranks
