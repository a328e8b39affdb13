"""Day 2's checks of data parallelism, by evidence that two processors cannot give."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from cases import for_all
from check_helpers import TEXTS

from course.checks import discovery, exercises
from course.checks import saved_files as saved
from course.checks.config_effects import differences
from course.config import rung
from course.training import models


def test_what_ddp_has_and_the_config_does_not_ask_is_named() -> None:
    seen = {
        "share": 8,
        "labels": [[1]],
        "weights_sum": 1.0,
        "collectives": {"allreduce": 1},
        "gradient_norm": 1.0,
        "ddp": {"bucket_mb": 0.2999, "find_unused": False},
    }
    cfg = rung("device", batch_size=16, bucket_mb=0.3, find_unused=True)
    record = SimpleNamespace(gpus=2, evidence=seen)
    ranks = [{"evidence": seen | {"labels": [[rank]]}} for rank in (0, 1)]
    run = SimpleNamespace(record=record, config=cfg, ranks=ranks)
    (found,) = differences(run)
    assert found == (
        "DDP has find_unused_parameters=False, and the config asks True: cfg.find_unused"
    )


@pytest.mark.parametrize("writers, is_fine", [([0, 1], True), ([0], False), ([], False)])
def test_the_weights_may_be_those_of_any_rank_that_wrote_them(
    writers: list[int], is_fine: bool, tmp_path: Path
) -> None:
    """Before TODO 9 all ranks write the file, and whoever is last stays."""
    network = models.create("resnet18", 10)
    torch.save(network.state_dict(), tmp_path / "weights.pt")
    own = sum(float(each.detach().double().sum()) for each in network.parameters())
    ranks = [
        {"evidence": {"weights_sum": own - 1 + rank}, "weights_by": [rank] * (rank in writers)}
        for rank in (0, 1)
    ]
    record = SimpleNamespace(evidence={"classes": 10, "weights_sum": own - 1})
    cfg = rung("device", model="resnet18", save_weights=True)
    run = SimpleNamespace(folder=tmp_path, config=cfg, record=record, ranks=ranks)
    assert (not [*saved.weights(run)]) == is_fine


def test_every_todo_of_the_scripts_has_a_check() -> None:
    todos = sorted(wanted.todo for wanted in discovery.checks().values())
    assert todos == [*range(1, max(map(exercises.count, TEXTS.values())) + 1)]


def ranks_on(*devices: tuple[str, str]) -> SimpleNamespace:
    ranks = [
        {"rank": rank, "host": host, "evidence": {"world_size": 2, "device": device}}
        for rank, (host, device) in enumerate(devices)
    ]
    return SimpleNamespace(record=SimpleNamespace(gpus=2), ranks=ranks)


@for_all(
    "devices, said",
    [
        (
            (("a", "cuda:0"), ("a", "cuda:0")),
            "several ranks computed on cuda:0: take run.local_rank's",
        ),
        ((("a", "cuda:0"), ("a", "cuda:1")), ""),
        ((("a", "cuda:0"), ("b", "cuda:0")), ""),
        ((("a", "cpu"), ("a", "cpu")), ""),
    ],
)
def test_two_ranks_on_one_device_are_noticed(devices, said: str) -> None:
    found = list(discovery.checks()["day2.ranks"].faults(ranks_on(*devices), None))
    assert [text[: len(said)] for text in found] == ([said] if said else [])


def test_a_number_of_validation_images_that_shows_nothing_is_refused() -> None:
    record = SimpleNamespace(val_images=64, val_loss=2.3, gpus=2)
    run = SimpleNamespace(record=record, ranks=[{"rank": 0, "weights_by": [0]}])
    (found,) = discovery.checks()["day2.once"].faults(run, run)
    assert "launch both runs with val_images=61" in found
