"""Checkpoints are complete or skipped, and random numbers, schedules and epochs continue."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from job_helpers import prepared
from torch.utils.data import DataLoader

from course.checks.compare import Folder
from course.config import rung
from course.data.seeded import Seeded
from course.runs.restarts import CHECKPOINT, METADATA, interruptions
from course.runs.run import FOLDER_VARIABLE, PROJECT, Run
from course.training import checkpoints, randomness
from course.training.recorder import recording
from labs.restart.lab import CHANGING

CPU = torch.device("cpu")


def state(step: int) -> dict:
    """Return a state with integer keys, empty dicts, tensors and text."""
    momentum = {0: {"momentum_buffer": torch.full((3,), float(step))}, 1: {}}
    return {
        "model": {"weight": torch.full((3,), float(step)), "count": torch.tensor(step)},
        "optimizer": {"state": momentum, "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
        "scaler": {},
        "step": step,
        "random": randomness.get_states(CPU),
    }


def assert_equal(loaded: dict, expected: dict) -> None:
    assert loaded.keys() == expected.keys()
    assert loaded["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys()
    states = (loaded, expected)
    assert torch.equal(*(s["optimizer"]["state"][0]["momentum_buffer"] for s in states))
    assert loaded["scaler"] == {} and loaded["step"] == expected["step"]
    assert torch.equal(loaded["random"][0]["cpu"], expected["random"][0]["cpu"])


def save(folder: Path, step: int) -> Path:
    path = folder / checkpoints.file_name(step)
    torch.save(state(step), path)
    return path


@pytest.mark.parametrize("left", [0, 0.5, 0.99])
def test_a_damaged_checkpoint_is_named_and_the_previous_one_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture, left: float
) -> None:
    assert checkpoints.newest(tmp_path) is None
    save(tmp_path, 3)
    (tmp_path / ".draft").write_bytes(b"half")
    damaged = save(tmp_path, 6)
    assert_equal(checkpoints.newest(tmp_path), state(6))
    content = damaged.read_bytes()
    damaged.write_bytes(content[: int(left * len(content))])
    assert_equal(checkpoints.newest(tmp_path), state(3))
    assert "step-000006.pt is damaged: " in capsys.readouterr().err


def test_a_thread_saves_the_same_state(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    store, last = checkpoints.BackgroundWriter(), state(9)
    for step in (3, 6):
        store(state(step), tmp_path, step)
    store(last, tmp_path, 9)
    last["model"]["weight"] += 1  # training continues
    store.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000006", "step-000009"]
    loaded = checkpoints.newest(tmp_path)
    assert_equal(loaded, state(9))
    assert loaded["model"]["weight"].tolist() == [9, 9, 9]
    (tmp_path / "step-000009" / METADATA).unlink()  # as if the process was killed
    assert_equal(checkpoints.newest(tmp_path), state(6))
    assert "step-000009 is damaged" in capsys.readouterr().err
    (part,) = (tmp_path / "step-000006").glob("*.distcp")
    os.truncate(part, 100)
    assert checkpoints.newest(tmp_path) is None
    assert "step-000006 is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("steps", [(1, 2, 3, 10), (999_998, 999_999, 1_000_000)])
def test_old_checkpoints_are_removed_but_other_files_stay(tmp_path: Path, steps: tuple) -> None:
    others = ["best.pt", "best-epoch-90.pt", "zero.pt", "step-3-notes.txt"]
    for name in others:
        torch.save({"best": True}, tmp_path / name)
    for step in steps:
        save(tmp_path, step)
        checkpoints.remove_old(tmp_path, keep=2)
    names = {checkpoints.file_name(step) for step in steps[-2:]}
    assert {path.name for path in tmp_path.iterdir()} == names | {*others}
    assert_equal(checkpoints.newest(tmp_path), state(steps[-1]))


@pytest.mark.slow
@pytest.mark.parametrize("last", [3, 7], ids=["of the first epoch", "of all"])
def test_a_run_that_is_interrupted_in_an_epochs_last_step_validates(
    uninterrupted: Run, small: Folder, last: int
) -> None:
    run = train(small, save_every=3, sigterm_step=last)
    record, expected = run.record, uninterrupted.record
    assert (run.status, interruptions(run.folder)) == ("ok", [{"how": "SIGTERM", "step": last}])
    assert (len(record.epochs), record.epochs) == (2, expected.epochs)
    assert (record.val_loss, record.last_loss) == (expected.val_loss, expected.last_loss)
    assert run.steps["loss"].tolist() == uninterrupted.steps["loss"].tolist()
    if last < 7:  # the second process has steps to do
        assert record.evidence.weights_sum == expected.evidence.weights_sum
    printed = (run.folder / "printed-0.txt").read_text()
    assert ("nothing is left to train" in printed) == (last == 7)
    assert "loss is 0.000" not in printed and printed.count("of 2 ends at step") == 2


def test_a_run_without_epochs_left_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = prepared(tmp_path / "first", "", rung("sharded", quick=True, epochs=2))
    (first.folder / CHECKPOINT).mkdir()
    (first.folder / CHECKPOINT / METADATA).touch()
    for epochs in (1, 2, 3):
        config = rung("sharded", quick=True, epochs=epochs, resume="first")
        run = prepared(tmp_path / f"resumed-{epochs}", "", config)
        monkeypatch.setenv(FOLDER_VARIABLE, str(run.folder))
        with suppress(RuntimeError), recording() as recorder:
            assert recorder.resume_checkpoint == first.folder / CHECKPOINT
        assert run.status == ("ok" if epochs == 3 else "failed")
        if epochs < 3:
            assert "'first': that run has completed 2 epochs, and epochs=" in run.record.error
            assert "Set epochs to 3 or more" in run.record.error


@pytest.fixture(scope="module")
def small() -> Iterator[Folder]:
    folder = Folder()
    yield folder
    folder.stop()


@pytest.fixture(scope="module")
def uninterrupted(small: Folder) -> Run:
    return train(small)


def train(small: Folder, **changes: Any) -> Run:
    """Train two epochs of four steps, with everything that can change from step to step."""
    config = rung("restarted", quick=True, **CHANGING | {"data": "imagenet"} | changes)
    text = (PROJECT / "solutions/train_restarted.py").read_text()
    run = small.add(f"run-{config.sigterm_step}", text, config, 1)
    small.work()
    return run


class RandomImages(torch.utils.data.Dataset):
    """Images that are only a random number."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(()) + index


def test_an_images_crop_does_not_depend_on_workers() -> None:
    results = []
    for workers in (0, 2):
        images = Seeded(RandomImages(), seed=1)
        before = torch.get_rng_state()
        epochs = []
        for epoch in (0, 1):
            images.set_epoch(epoch)
            loader = DataLoader(images, 2, num_workers=workers, generator=torch.Generator())
            epochs.append(torch.cat([*loader]).tolist())
        if not workers:
            assert torch.equal(torch.get_rng_state(), before)
        results.append(epochs)
    assert results[0] == results[1]
    first, second = results[0]
    assert all(a != b for a, b in zip(first, second))
    assert len({round(value % 1, 5) for value in first}) == 6
    assert Seeded(RandomImages(), seed=2)[0] != first[0]
