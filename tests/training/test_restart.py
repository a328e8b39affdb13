"""Checkpoints are whole or passed over, random numbers go on, images draw for themselves."""

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from cases import for_all
from job_helpers import prepared, train_together
from torch.utils.data import DataLoader

from course.config import rung
from course.data.loader import EpochSampler
from course.data.seeded import Seeded
from course.runs.restarts import interruptions
from course.runs.run import PROJECT, Run
from course.training import optimizers
from course.training.restart import checkpoint, randomness
from labs.day4_5_practice.restart_checks import CHANGING

CPU = torch.device("cpu")


def state(step: int) -> dict:
    """Of all kinds that a training's state has: numbers as keys, nothing at all, tensors, text."""
    momentum = {0: {"momentum_buffer": torch.full((3,), float(step))}, 1: {}}
    return {
        "model": {"weight": torch.full((3,), float(step)), "count": torch.tensor(step)},
        "optimizer": {"state": momentum, "param_groups": [{"lr": 0.1, "params": [0, 1]}]},
        "scaler": {},
        "step": step,
        "random": randomness.get_states(CPU),
    }


def same(found: dict, due: dict) -> None:
    assert found.keys() == due.keys()
    assert found["optimizer"]["state"].keys() == due["optimizer"]["state"].keys()
    buffers = [each["optimizer"]["state"][0]["momentum_buffer"] for each in (found, due)]
    assert torch.equal(*buffers) and found["scaler"] == {} and found["step"] == due["step"]
    assert torch.equal(found["random"][0]["cpu"], due["random"][0]["cpu"])


def saved(folder: Path, step: int) -> Path:
    path = folder / checkpoint.file_name(step)
    torch.save(state(step), path)
    return path


def test_the_newest_is_taken(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    for step in (9, 10, 1000):
        saved(tmp_path, step)
    (tmp_path / ".draft").write_bytes(b"half")
    same(checkpoint.newest(tmp_path), state(1000))


@pytest.mark.parametrize("left", [0, 100, 0.5, 0.99])
def test_a_damaged_one_is_named_and_the_one_before_it_used(
    tmp_path: Path, capsys: pytest.CaptureFixture, left: float
) -> None:
    saved(tmp_path, 3)
    damaged = saved(tmp_path, 6)
    content = damaged.read_bytes()
    damaged.write_bytes(content[: int(left if left in (0, 100) else left * len(content))])
    same(checkpoint.newest(tmp_path), state(3))
    assert "step-000006.pt is damaged, the one before it is used" in capsys.readouterr().err


def test_a_thread_saves_the_same(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    store, last = checkpoint.BackgroundWriter(), state(9)
    for step in (3, 6):
        store(state(step), tmp_path, step)
    store(last, tmp_path, 9)
    last["model"]["weight"] += 1  # training goes on
    store.wait()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-000006", "step-000009"]
    found = checkpoint.newest(tmp_path)
    same(found, state(9))
    assert found["model"]["weight"].tolist() == [9, 9, 9]
    (tmp_path / "step-000009" / checkpoint.METADATA).unlink()  # as if killed before it was done
    same(checkpoint.newest(tmp_path), state(6))
    assert "step-000009 is damaged" in capsys.readouterr().err
    (part,) = (tmp_path / "step-000006").glob("*.distcp")
    os.truncate(part, 100)
    assert checkpoint.newest(tmp_path) is None
    assert "step-000006 is damaged" in capsys.readouterr().err


def test_old_ones_go(tmp_path: Path) -> None:
    for step in (1, 2, 3, 10):
        saved(tmp_path, step)
    checkpoint.remove_old(tmp_path, kept=2)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["step-000003.pt", "step-000010.pt"]


def test_steps_are_numbers_and_no_text(tmp_path: Path) -> None:
    """With a millionth step a name is longer: it is the newest nevertheless, and stays."""
    for step in (999_998, 999_999, 1_000_000):
        saved(tmp_path, step)
    checkpoint.remove_old(tmp_path, kept=2)
    left = sorted(path.name for path in tmp_path.iterdir())
    assert left == ["step-1000000.pt", "step-999999.pt"]
    same(checkpoint.newest(tmp_path), state(1_000_000))


def test_what_somebody_else_put_there_is_left_and_not_taken(tmp_path: Path) -> None:
    others = ["best.pt", "best-epoch-90.pt", "zero.pt", "step-3-notes.txt"]
    for name in others:
        torch.save({"best": True}, tmp_path / name)
    for step in (3, 6):
        saved(tmp_path, step)
        checkpoint.remove_old(tmp_path, kept=1)
    assert {path.name for path in tmp_path.iterdir()} == {*others, "step-000006.pt"}
    same(checkpoint.newest(tmp_path), state(6))


def test_random_numbers_go_on(tmp_path: Path) -> None:
    def draw() -> list[float]:
        return [random.random(), float(np.random.random()), float(torch.rand(()))]

    randomness.seed_all(rung("baseline", seed=3))
    draw()
    torch.save(randomness.get_states(CPU), tmp_path / "random.pt")
    due = draw()
    randomness.seed_all(rung("baseline", seed=4))
    assert draw() != due
    randomness.set_states(torch.load(tmp_path / "random.pt", weights_only=True), CPU)
    assert draw() == due
    with pytest.raises(ValueError, match="random numbers of 2 ranks, and 1 go on"):
        randomness.set_states([{}, {}], CPU)


@pytest.mark.slow
@pytest.mark.parametrize("last", [3, 7], ids=["of the first epoch", "of all"])
def test_asked_to_end_in_an_epochs_last_step_it_validates(
    unstopped: Run, tmp_path: Path, tiny_set: Path, last: int
) -> None:
    run = trained(tmp_path / "run", tiny_set, save_every=3, sigterm_step=last)
    seen, due = run.record, unstopped.record
    assert (run.status, interruptions(run.folder)) == ("ok", [{"how": "SIGTERM", "step": last}])
    assert (len(seen.epochs), seen.epochs) == (2, due.epochs)
    assert (seen.val_loss, seen.last_loss) == (due.val_loss, due.last_loss)
    assert run.steps["loss"].tolist() == unstopped.steps["loss"].tolist()
    if last < 7:  # in a process that has a step to do, that is noted
        begun, before = seen.evidence["moments"], due.evidence["moments"]
        assert [*begun] == ["4", "5", "6", "7"]
        assert {at: begun[at] for at in "456"} == {at: before[at] for at in "456"}
        assert seen.evidence["at_end"] == due.evidence["at_end"]
    printed = (run.folder / "printed.txt").read_text()
    assert "loss is 0.000" not in printed and printed.count("of 2 ends at step") == 2


@pytest.fixture(scope="module")
def unstopped(tiny_set: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    return trained(tmp_path_factory.mktemp("whole") / "run", tiny_set)


def trained(folder: Path, images: Path, **own: Any) -> Run:
    """A training in which all changes from step to step, of two epochs of four steps each."""
    size = CHANGING | {"data": "imagenet", "data_root": str(images), "warmup_steps": 7}
    text = (PROJECT / "solutions/train_restarted.py").read_text()
    run = prepared(folder, text, rung("restarted", quick=True, **size | own))
    env = {"CUDA_VISIBLE_DEVICES": "", "OMP_NUM_THREADS": "1", "NO_HOST_MEMORY": "1"}
    (folder / "printed.txt").write_text(train_together([run], **env))
    return run


class Drawn(torch.utils.data.Dataset):
    """Images that are nothing but a random number."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.rand(()) + index


def test_an_image_draws_the_same_whoever_loads_it() -> None:
    found = []
    for workers in (0, 2):
        images = Seeded(Drawn(), seed=1)
        before = torch.get_rng_state()
        epochs = []
        for epoch in (0, 1):
            images.set_epoch(epoch)
            loader = DataLoader(images, 2, num_workers=workers, generator=torch.Generator())
            epochs.append(torch.cat([*loader]).tolist())
        if not workers:
            assert torch.equal(torch.get_rng_state(), before)
        found.append(epochs)
    assert found[0] == found[1]
    first, second = found[0]
    assert all(a != b for a, b in zip(first, second))
    assert len({round(each % 1, 5) for each in first}) == 6
    assert Seeded(Drawn(), seed=2)[0] != first[0]


def test_an_epoch_begins_in_its_middle() -> None:
    whole = [*EpochSampler(range(10), images=25)]
    for images in (0, 4, 10, 13):
        part = EpochSampler(range(10), images=25)
        part.skip = images
        assert [*part] == whole[images:]
        assert [*part] == whole  # the next epoch is whole


@for_all("schedule, warmup", [("", 0), ("cosine", 3), ("one_cycle", 0)])
def test_a_schedule_goes_on(schedule: str, warmup: int) -> None:
    cfg = rung("baseline", schedule=schedule, lr_warmup=warmup, steps=10, epochs=1)

    def made() -> tuple:
        weight = torch.ones(1, requires_grad=True)
        weight.grad = torch.ones(1)
        optimizer = optimizers.create([weight], cfg)
        return optimizer, optimizers.schedule(optimizer, cfg)

    def rates(optimizer: torch.optim.Optimizer, steps: int) -> list[float]:
        found = []
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
        return found

    optimizer, course = made()
    first = rates(optimizer, 6)
    kept = optimizer.state_dict(), course.state_dict()
    due = rates(optimizer, 4)
    other, again = made()
    other.load_state_dict(kept[0])
    again.load_state_dict(kept[1])
    assert rates(other, 4) == due
    assert len({*first, *due}) == (1 if not schedule else 10)
