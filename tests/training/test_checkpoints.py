"""Training resumes as if it had not been interrupted, with every setting of train.py."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from job_helpers import prepared, train_together
from timm.data.distributed_sampler import RepeatAugSampler
from torch import nn
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from course import config
from course.config import rung
from course.data.folders import KINDS
from course.data.formats import convert
from course.data.loader import EpochSampler, set_epoch, skip
from course.runs import restarts
from course.runs.run import PROJECT, Run
from course.training import optimizers
from course.training.checkpoints import SIGNALS, Checkpoints, newest
from course.training.recorder import Recorder

STEPS, EPOCHS = 4, 2
SMALL = {
    "model": "resnet18",
    "image_px": 32,
    "batch_size": 4,
    "epochs": EPOCHS,
    "steps": STEPS,
    "warmup_steps": 1,
    "val_steps": 1,
    "budget_s": 0.0,
    "precision": "fp32",
    "deterministic": True,
    "save_every": 2,
}
# In the middle of each epoch, and at the end of the first: as Slurm's signals would.
BACKWARD = '            meter.lap("backward")\n'
STOP = """
import os, signal
def stop(folder, step):
    if step in (2, 3, 5) and not (folder / f"stopped-{step}").exists():
        (folder / f"stopped-{step}").touch()
        os.kill(os.getpid(), signal.SIGUSR1 if step == 2 else signal.SIGTERM)
"""
FILES = {"data": "imagenet"}
FEATURES: dict[str, dict[str, Any]] = {
    "shards": FILES | {"format": "shards", "optimizer": "adamw", "ema": 0.5},
    "shards by workers": FILES | {"format": "shards", "workers": 2, "persistent_workers": True},
    "raw": FILES | {"format": "raw", "async_save": True, "schedule": "one_cycle"},
    "gpu_decode": FILES | {"format": "gpu_decode", "randaugment": "device", "mix": "cutmix"},
    "crops": {"data": "crops", "mix": "mixup", "optimizer": "schedulefree"},
    "repeated": FILES
    | {"format": "files", "ra_reps": 3, "auto_augment": "ta_wide", "random_erasing": 0.5}
    | {"mix": "both", "schedule": "step", "lr_step_size": 1, "steps": 0, "batch_size": 8}
    | {"val_px": 64, "flip_tta": True, "val_steps": -1},
    "small": FILES
    | {"format": "small", "image_px": 64, "start_px": 32, "workers": 2, "randaugment": "cpu"}
    | {"persistent_workers": True, "precision": "fp16", "overflow_step": 1, "mix": "mixup"},
    "algebra": {"data": "synthetic", "model": "resnet50", "algebra": True, "schedule": "linear"},
    "compile": {"data": "synthetic", "model": "resnet8_patches", "compile": "default"},
}
LONG = ("algebra", "compile")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=pytest.mark.long if x in LONG else ()) for x in FEATURES]
)
def test_an_interrupted_training_equals_one_that_was_not(
    tmp_path: Path, small_set: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    settings = SMALL | FEATURES[name]
    if settings["data"] == "imagenet":
        monkeypatch.setenv("COURSE_DATA", str(tmp_path / "default"))  # conversions are next to it
        monkeypatch.setattr(convert, "MIN_PART", 8)
        settings["data_root"] = str(small_set)
        if settings["format"] in KINDS:
            convert.convert_set(settings["format"], small_set)
    whole, stopped = (run_of(tmp_path / x, settings, x == "stopped") for x in ("whole", "stopped"))
    printed = train_together([whole, stopped])
    assert [run.status for run in (whole, stopped)] == ["ok", "ok"], stopped.record
    for step in (3, 4, 6):
        assert f"continues from the checkpoint after step {step}" in printed
    assert stopped.steps["loss"].tolist() == whole.steps["loss"].tolist()
    assert stopped.record.epochs == whole.record.epochs
    values, expected = (tree_leaves(newest(run.folder / "checkpoints")) for run in (stopped, whole))
    assert len(values) == len(expected)
    for value, due in zip(values, expected):
        assert torch.equal(value, due) if torch.is_tensor(due) else value == due


def run_of(folder: Path, settings: dict[str, Any], is_stopped: bool = False) -> Run:
    """Prepare a run of the solution, which gets signals in three steps if it is to be stopped."""
    text = (PROJECT / "solutions/train.py").read_text()
    if is_stopped:
        assert text.count(BACKWARD) == 1
        text = (
            text.replace(BACKWARD, f"{BACKWARD}            stop(run.folder, meter.step)\n") + STOP
        )
    return prepared(folder, text, rung("baseline", quick=True, **settings))


CPU = torch.device("cpu")
IMAGES = DataLoader(TensorDataset(torch.zeros(12, 1)), 4)
CONFIG = rung("baseline", quick=True, **SMALL)


def checkpoints_of(folder: Path, net: nn.Module, images: DataLoader = IMAGES, **changes: Any):
    """Return the checkpoints of a run of this network in a folder, and resume from the newest."""
    run = Run(folder) if folder.exists() else prepared(folder, "", CONFIG)
    recorder = Recorder(run)
    recorder.config = config.change(CONFIG, changes)
    optimizer = optimizers.create(net.parameters(), recorder.config)
    schedule = optimizers.schedule(optimizer, recorder.config)
    parts = {"model": net, "optimizer": optimizer, "schedule": schedule, "scaler": None}
    result = Checkpoints(recorder, CPU, parts)
    return result, result.resume(images, net)


@pytest.fixture(autouse=True)
def same_handlers() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": "resnet34"},
            "model='resnet34': the checkpoint after step 2 was saved",
        ),
        ({"optimizer": "adamw"}, "Choose optimizer='sgd', or start a new training (--rerun)"),
        ({"schedule": "cosine"}, "schedule='cosine'.*saved with schedule=''"),
        ({"schedule": "step"}, "schedule='step'"),
        ({"lr_warmup_epochs": 1}, "lr_warmup_epochs=1.*saved with lr_warmup_epochs=0"),
        ({"lr_warmup": 2}, "lr_warmup=2.*saved with lr_warmup=0"),
        ({"batch_size": 8}, "batch_size=8.*saved with batch_size=4"),
        ({"steps": 5}, "steps=5.*saved with steps=4"),
        ({"data": "synthetic"}, "data='synthetic'.*saved with data='default'"),
        ({"seed": 1}, "seed=1"),
        ({"ema": 0.5}, "ema=0.5.*saved with ema=0.0"),
        ({"images": 13}, "training images=13: the checkpoint after step 2 was saved with training"),
    ],
    ids=str,
)
def test_a_checkpoint_of_another_training_is_refused(
    tmp_path: Path, changes: dict, message: str
) -> None:
    first, _ = checkpoints_of(tmp_path / "run", nn.Linear(2, 2))
    assert not first.ends_after(1) and not first.ends_after(2)
    images = DataLoader(TensorDataset(torch.zeros(changes.pop("images", 12), 1)), 4)
    with pytest.raises(ValueError, match=re.escape(message).replace(r"\.\*", ".*")):
        checkpoints_of(tmp_path / "run", nn.Linear(2, 2), images, **changes)


@pytest.mark.parametrize(
    ("schedule", "is_refused"), [("", False), ("step", False), ("cosine", True), ("linear", True)]
)
def test_more_epochs_are_refused_if_the_schedule_would_differ(
    tmp_path: Path, schedule: str, is_refused: bool
) -> None:
    warmup = {"schedule": schedule, "lr_warmup": 1}
    first, _ = checkpoints_of(tmp_path / "run", nn.Linear(2, 2), **warmup)
    first.ends_after(2)
    refusal = pytest.raises(ValueError, match="epochs=3.*saved with epochs=2")
    with refusal if is_refused else nullcontext():
        _, step = checkpoints_of(tmp_path / "run", nn.Linear(2, 2), **warmup, epochs=3)
        assert step == 2


def test_settings_that_an_optimizer_can_change_are_taken_from_the_config(tmp_path: Path) -> None:
    first, _ = checkpoints_of(tmp_path / "run", nn.Linear(2, 2), lr=0.5)
    first.ends_after(2)
    second, step = checkpoints_of(tmp_path / "run", nn.Linear(2, 2), lr=0.25, epochs=3)
    assert (step, second.parts["optimizer"].param_groups[0]["lr"]) == (2, 0.25)
    with pytest.raises(ValueError, match="lr=0.25: the checkpoint after step 4"):
        scheduled, _ = checkpoints_of(tmp_path / "scheduled", nn.Linear(2, 2), schedule="cosine")
        scheduled.ends_after(4)
        checkpoints_of(tmp_path / "scheduled", nn.Linear(2, 2), schedule="cosine", lr=0.25)


def test_the_last_two_and_the_best_are_kept(tmp_path: Path) -> None:
    net = nn.Linear(2, 2)
    result, _ = checkpoints_of(tmp_path / "run", net, epochs=3)
    for epoch, accuracy in enumerate((0.25, 0.75, 0.5)):
        nn.init.constant_(net.weight, epoch)
        for step in range(4 * epoch + 1, 4 * epoch + 5):
            assert not result.ends_after(step)
        result.run.epoch(val_top1=accuracy)
        result.keep_best(net)
    names = sorted(path.name for path in result.run.checkpoints.iterdir())
    assert names == ["step-000010.pt", "step-000012.pt"]
    best = torch.load(tmp_path / "run" / restarts.BEST, weights_only=True)
    assert (best["epoch"], best["val_top1"], best["model"]["weight"].unique().item()) == (
        2,
        0.75,
        1,
    )


KILLED = """
import os, signal, sys
from pathlib import Path
import torch
from course.training import checkpoints
folder = Path(sys.argv[1])
if sys.argv[2] == "async":
    writer = checkpoints.BackgroundWriter()
    writer({"weight": torch.ones(8), "step": 1}, folder, 1)
    writer.wait()
    fsync = os.fsync
    def kill(file):
        os.kill(os.getpid(), signal.SIGKILL)
    os.fsync = kill
    writer({"weight": torch.zeros(8), "step": 2}, folder, 2)
    writer.wait()
else:
    checkpoints.save({"weight": torch.ones(8), "step": 1}, folder, 1)
    real = torch.save
    def half(state, file):
        real(state, file)
        file.truncate(file.tell() // 2)
        os.kill(os.getpid(), signal.SIGKILL)
    torch.save = half
    checkpoints.save({"weight": torch.zeros(8), "step": 2}, folder, 2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["async", "sync"])
def test_a_process_that_is_killed_while_it_writes_leaves_the_checkpoint_before(
    tmp_path: Path, way: str, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "killed.py").write_text(KILLED)
    command = [sys.executable, tmp_path / "killed.py", tmp_path / "checkpoints", way]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert len([*(tmp_path / "checkpoints").iterdir()]) == 2
    loaded = newest(tmp_path / "checkpoints")
    assert loaded["step"] == 1 and loaded["weight"].tolist() == [1] * 8
    assert ("step-000002 is damaged" in capsys.readouterr().err) == (way == "async")
    restarts.remove_unfinished(tmp_path)
    (left,) = (tmp_path / "checkpoints").iterdir()
    assert left.stem == "step-000001"


ON_GPUS = """
import sys
from pathlib import Path
import torch
from torch import distributed
from course.training import checkpoints
store = distributed.FileStore(sys.argv[1] + "/store", 1)
distributed.init_process_group("cuda:gloo", store=store, rank=0, world_size=1)
writer = checkpoints.BackgroundWriter()
writer({"weight": torch.ones(8)}, Path(sys.argv[1], "checkpoints"), 3)
writer.wait()
"""


@pytest.mark.slow
def test_ranks_whose_group_is_for_gpus_only_save_in_the_background(tmp_path: Path) -> None:
    """NCCL's group has no place for tensors in host memory, which async_save asks for."""
    subprocess.run([sys.executable, "-c", ON_GPUS, tmp_path], check=True, cwd=PROJECT)
    assert newest(tmp_path / "checkpoints")["weight"].tolist() == [1] * 8


@pytest.mark.parametrize("async_save", [False, True])
def test_training_does_not_begin_anew_because_all_checkpoints_are_damaged(
    tmp_path: Path, async_save: bool, capsys: pytest.CaptureFixture
) -> None:
    first, _ = checkpoints_of(tmp_path / "run", nn.Linear(2, 2), async_save=async_save)
    for step in (2, 8):
        first.ends_after(step)
    saved = [x for x in (tmp_path / "run/checkpoints").rglob("*") if x.suffix in (".pt", ".distcp")]
    for path in saved:
        path.write_bytes(b"")
    with pytest.raises(ValueError, match="none of 2 checkpoints.*or --rerun"):
        checkpoints_of(tmp_path / "run", nn.Linear(2, 2))
    reasons = [line.partition(": ")[2] for line in capsys.readouterr().err.splitlines()]
    assert len(reasons) == 2 and all("Error" in text or "EOF" in text for text in reasons), reasons


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_another_number_of_ranks_goes_on_at_the_same_image(ranks: int) -> None:
    """Two passes of 18 images in an epoch of 6 steps of 6; 2 steps were made by one rank."""

    def images(world_size: int, done: int) -> list[set[int]]:
        share, by_rank = 6 // world_size, []
        for rank in range(world_size):
            sampler = DistributedSampler(range(18), world_size, rank, seed=3)
            batches = DataLoader(range(18), share, sampler=EpochSampler(sampler, 6 * share, 2))
            sampler.set_epoch(1)
            set_epoch(batches, 1)
            skip(batches, done * share)
            by_rank.append([batch.tolist() for batch in batches])
        return [set().union(*step) for step in zip(*by_rank)]

    assert images(ranks, 2) == images(1, 0)[2:]


def test_each_use_of_an_image_in_an_epoch_has_its_own_crop() -> None:
    numbers = []
    for rank in range(2):  # three uses of each image in a row, in two passes
        sampler = RepeatAugSampler(range(4), 2, rank, num_repeats=3, selected_round=0)
        sampler.num_selected_samples = 6
        numbers += EpochSampler(sampler, 12, 1, count=4)
    assert sorted(numbers) == [*range(24)]
