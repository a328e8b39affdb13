"""A signal to all processes of a job, as Slurm sends it, changes no bit of a training."""

import os
import pickle
import re
from pathlib import Path

import psutil
import pytest
import torch
from job_helpers import (
    SCRIPTS,
    eventually,
    narrow_solution,
    nothing_left,  # noqa: F401 - every test of this file ends its runs
    over,
    run_forked,
)
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.utils._pytree import tree_leaves

from course.config import rung
from course.jobs import launch as jobs
from course.runs import failures
from course.runs.run import Run

STEPS = 12
# Each rank leads a process group, to which its DataLoader workers belong. The sender must be a
# different process: PyTorch's workers end quietly if it is their parent.
SIGNALLED = """
import os, subprocess
from pathlib import Path
def signalled(meter, phase, loss=None, lap=Meter.lap):
    lap(meter, phase, loss)
    first = Path(f"signalled-{os.environ['RANK']}")
    if (phase, meter.step) == ("forward", 7) and not first.exists():
        first.touch()
        kill = ["sh", "-c", f"kill -TERM -{os.getpgid(0)}"]
        subprocess.run(kill, check=True, start_new_session=True)
Meter.lap = signalled
"""


# What changes from step to step, or from image to image.
CHANGING = {"precision": "fp32", "schedule": "cosine", "mix": "mixup"}
CASES = {
    "train_restarted.py": CHANGING,
    "train.py": CHANGING
    | {"image_px": 64, "start_px": 32, "ema": 0.9, "randaugment": "cpu", "bucket_mb": 0.01},
    "train_sharded.py": {
        "precision": "fp32",
        "schedule": "one_cycle",
        "model": "vit_tiny_patch16_224",
        "optimizer": "adamw",
        "shard": "zero3",
        "async_save": True,
    },
}


def last_state(run: Run) -> list:
    """Return the values in a run's last checkpoint."""
    path = run.folder / "checkpoints" / f"step-{STEPS:06}.pt"
    if (folder := path.with_suffix("")).exists():  # all ranks wrote it
        dcp_to_torch_save(folder, path)
    state = torch.load(path, weights_only=False)
    return tree_leaves(state | pickle.loads(state.pop("rest", pickle.dumps({}))))


def case(script: str, ranks: int, *, is_long: bool) -> object:
    marks = pytest.mark.long if is_long else ()
    return pytest.param(script, ranks, marks=marks, id=f"{script}-{ranks}")


@pytest.mark.parametrize(
    ("name", "ranks"),
    [
        case("train_restarted.py", 1, is_long=True),
        case("train_restarted.py", 3, is_long=True),
        case("train.py", 1, is_long=True),
        case("train.py", 2, is_long=True),
        case("train.py", 3, is_long=False),
        case("train_sharded.py", 2, is_long=False),
        case("train_sharded.py", 3, is_long=True),
    ],
)
def test_a_signalled_training_resumes_to_the_bit(
    tmp_path: Path, runs_root: Path, small_set: Path, name: str, ranks: int
) -> None:
    """The workers get the signal, too, and DDP groups gradients as in the first process."""
    config = (
        {"model": "resnet18", "image_px": 32}
        | CASES[name]
        | {
            "script": name,
            "data": "imagenet",
            "data_root": str(small_set),
            "batch_size": 6,
            "epochs": 2,
            "steps": STEPS // 2,
            "warmup_steps": 1,
            "val_images": 6,
            "deterministic": True,
            "save_every": STEPS,
        }
    )
    whole_script = narrow_solution(tmp_path, "", name).rename(tmp_path / "whole.py")
    script = narrow_solution(tmp_path, SIGNALLED, name)
    whole = jobs.launch(whole_script, rung("restarted", quick=True, **config), gpus=ranks)
    signalled = [
        jobs.launch(script, rung("restarted", quick=True, workers=count, **config), gpus=ranks)
        for count in (0, 2)
    ]
    assert over(whole).status == "ok", whole.explain()
    expected = last_state(whole)
    for run in signalled:
        assert over(run).status == "ok", run.explain()
        log = run.tail(lines=100)
        assert ("after step 8" in log) == (name != "train_restarted.py"), log
        assert run.record.evidence.loader.num_workers == run.config.workers
        assert run.steps["loss"].tolist() == whole.steps["loss"].tolist()
        assert run.record.epochs == whole.record.epochs
        state = last_state(run)
        assert len(state) == len(expected)
        for value, due in zip(state, expected):
            assert torch.equal(value, due) if torch.is_tensor(due) else value == due


def is_running(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize(
    ("way", "code"),
    [
        ("complete", 0),
        ("persistent", 0),
        ("error", 1),
        ("exit", 3),
        ("interrupt", 1),
        ("killed", -9),
    ],
)
def test_workers_ignore_the_signal_but_end_with_their_process(
    tmp_path: Path, small_set: Path, way: str, code: int
) -> None:
    script = SCRIPTS / "loads_images.py"
    done = run_forked(script, str(small_set), way, folder=tmp_path, env=dict(os.environ))
    assert done.returncode == code, done.stderr
    assert "got SIGTERM" in done.stdout and "goes on" in done.stdout
    assert "killed by signal" not in done.stderr, done.stderr
    workers = [int(pid) for pid in re.search("workers (.*)", done.stdout)[1].split()]
    eventually(lambda: not any(map(is_running, workers)), "the workers end", timeout_s=30)


def test_memory_is_not_to_blame_for_a_signal() -> None:
    for name, cause in (("Terminated", "preempted or at its time"), ("Killed", "out of memory")):
        error = RuntimeError("DataLoader worker (pid(s) 17) exited unexpectedly")
        error.__cause__ = RuntimeError(f"DataLoader worker (pid 17) is killed by signal: {name}. ")
        assert cause in failures.advice(error)
        assert ("memory" in failures.advice(error)) == (name == "Killed")
