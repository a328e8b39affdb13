"""Runs that the GPU tests share: each is trained once, when the first test needs it.

All train solutions/train.py on synthetic data. A job takes about nine seconds to start, so runs
that need not be jobs are trained together in one process.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import job_helpers
import pytest
import torch
from job_helpers import prepared

from course import launch, rung
from course.config import Config
from course.runs.run import PROJECT, Run
from course.training.memory_prediction import predict_memory
from trainspeed import measured_memory as memory

TEXT = (PROJECT / "solutions" / "train.py").read_text()
COMMON = {"data": "synthetic", "epochs": 1, "val_steps": 0}
# 128 images keep a fast GPU busy. Power needs a second or more, hence the number of steps.
BUSY = COMMON | {"batch_size": 128, "steps": 18, "warmup_steps": 6}
SMALL = COMMON | {"model": "resnet18", "steps": 12}  # compiling ResNet-50 takes a minute
JOBS = {
    "device": rung("device", **BUSY),
    "amp": rung("amp", **BUSY | {"steps": 30}, profile_steps=1),
    "channels_last": rung("channels_last", **BUSY | {"steps": 30}),
    "small memory": rung("device", **BUSY, memory_gib=4),
    "compile": rung("compile", **SMALL, profile_steps=1),
}
FEW = COMMON | {"batch_size": 8, "steps": 4, "warmup_steps": 1, "lr": 0.003}  # for the CPU, too
TOGETHER = {
    "few on the CPU": rung("baseline", **FEW),
    "few": rung("device", **FEW),
    "traced": rung("device", **BUSY, profile_steps=1),
    "fp16": rung("amp", **BUSY, precision="fp16", overflow_step=1),
    "not compiled": rung("fused", **SMALL),
    "overflows": rung("fused", **COMMON, steps=30, precision="fp16"),
}
# At first the scaled loss's gradients overflow in fp16, so the scaler skips steps.
SCALER = "torch.amp.GradScaler(device.type, "
OVERFLOWING = TEXT.replace(SCALER, f"{SCALER}init_scale=2.0**24, ")


@pytest.fixture(autouse=True)
def own_runs(runs_kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Skip without CUDA. These tests share their runs in a folder that is not the user's."""
    if not torch.cuda.is_available():
        pytest.skip("this test needs a CUDA GPU, and torch sees none here")
    if int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")) > 1:  # others would affect the times
        pytest.skip("this test needs the machine for itself: python -m pytest tests/gpu")
    monkeypatch.setenv("COURSE_RUNS", str(runs_kept))


@pytest.fixture(scope="session")
def runs_kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the shared runs."""
    return tmp_path_factory.mktemp("gpu-runs")


@pytest.fixture
def trained(runs_kept: Path) -> Callable[..., Run]:
    """Return a function that trains a run named above, or "too large", and checks its status."""

    def find(name: str, status: str = "ok") -> Run:
        if name in TOGETHER:
            train_together(runs_kept / "together")
            run = Run(runs_kept / "together" / name)
        else:
            config = too_large() if name == "too large" else JOBS[name]
            run = launch("solutions/train.py", config, time_min=2)  # or return the existing run
            run.wait(check=False)
        assert run.status == status, run.explain()
        return run

    return find


def train_together(root: Path) -> None:
    """Train the runs of TOGETHER in one process, unless they exist."""
    if root.exists():
        return
    every = [
        prepared(root / name, OVERFLOWING if name == "overflows" else TEXT, config)
        for name, config in TOGETHER.items()
    ]
    job_helpers.train_together(every, timeout_s=120, narrow=False)


def too_large() -> Config:
    """Return a config whose batch needs more memory than the card has."""
    fits = JOBS["device"]
    times = memory.total_gib(torch.device("cuda")) / predict_memory(fits).peak_gib
    return replace(fits, batch_size=round(1.3 * times * fits.batch_size))
