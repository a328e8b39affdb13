"""A network in parts: together they are the network, and the dearest part is as cheap as can be."""

import random
from contextlib import nullcontext
from itertools import combinations, pairwise

import pytest
import torch
from cases import for_all
from torch import nn

from course.config import Config
from course.training import models
from course.training.clocks import HostClock
from course.training.evidence.actions import Actions
from course.training.ranks import pipelines
from course.training.ranks.group import validate

SIZES = {"vit_tiny_patch16_224": 64, "resnet18": 64, "coatnet_pico_rw_224": 64}


def dearest(cost: list[int], begins: list[int]) -> int:
    return max(sum(cost[a:b]) for a, b in pairwise([0, *begins, len(cost)]))


@for_all("pieces", [4, 6, 9, 11])
def test_cuts_are_the_best_of_all(pieces: int) -> None:
    numbers = random.Random(pieces)
    for count in range(1, min(5, pieces - 2) + 1):
        for _ in range(20):
            cost = [numbers.randint(0, 9) for _ in range(pieces)]
            begins = pipelines.balance(cost, count)
            ways = combinations(range(2, pieces - 1), count - 1)
            assert dearest(cost, begins) == min(dearest(cost, way) for way in ways)
            assert begins == sorted({*begins}) and len(begins) == count - 1
            assert all(2 <= begin <= pieces - 2 for begin in begins)  # none is without a block


def test_many_pieces_are_cut_at_once() -> None:
    cost = [1.0] * 46
    begins = pipelines.balance(cost, 8)  # 45 over 7: forty-five million ways
    assert dearest(cost, begins) == 6


@pytest.mark.slow
@for_all("model", SIZES)
def test_parts_are_the_network(model: str) -> None:
    torch.manual_seed(0)
    net = models.create(model, 5, SIZES[model]).eval()
    images = torch.randn(2, 3, SIZES[model], SIZES[model])
    with torch.no_grad():
        due = net(images)
        for cut in ("gflop", "1,3,4"):
            parts = pipelines.split(net, 4, cut, SIZES[model])
            torch.testing.assert_close(nn.Sequential(*parts)(images), due)
    held = [id(each) for part in parts for each in part.parameters()]
    assert len(held) == len({*held})
    assert sum(map(models.parameter_count, parts)) == models.parameter_count(net)


def test_weights_and_gflop_cut_apart() -> None:
    with torch.device("meta"):
        net = models.create("coatnet_pico_rw_224", 16, 224)
    found = pipelines.piece_costs(net, 224)
    begins = {name: pipelines.balance([each[name] for each in found], 2) for name in found[0]}
    assert begins == {"weights": [11], "gflop": [7]}


def test_a_cut_that_does_not_fit_is_refused() -> None:
    net = models.create("resnet18", 5)
    with pytest.raises(ValueError, match="9 stages, but only 8 blocks"):
        pipelines.split(net, 9, "gflop", 64)
    with pytest.raises(ValueError, match="cut='3': 3 stages need the numbers of the 2 blocks"):
        pipelines.split(net, 3, "3", 64)
    with pytest.raises(ValueError, match="cut='8': 2 stages need the 1 blocks .* of 1 to 7"):
        pipelines.split(net, 2, "8", 64)


def test_numbers_of_stages() -> None:
    assert pipelines.stage_numbers("1f1b", 1, 4) == ([1], 4)
    assert pipelines.stage_numbers("interleaved", 1, 4) == ([1, 5], 8)


def test_what_a_stage_sends_is_contiguous_both_ways() -> None:
    class Turned(nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features.transpose(1, 2)

    given = torch.randn(2, 3, 4, requires_grad=True)
    result = pipelines.Stage(Turned(), torch.autocast("cpu", enabled=False))(given)
    assert result.is_contiguous() and result.shape == (2, 4, 3)
    (gradient,) = torch.autograd.grad(result, given, torch.randn(2, 4, 3))
    assert gradient.is_contiguous() and gradient.shape == given.shape


def test_a_run_that_was_broken_off_leaves_nothing_behind() -> None:
    from torch.distributed.pipelining.stage import _PipelineStageBase as Base

    own, cpu = Base.forward_one_chunk, torch.device("cpu")
    first, second = (Actions(HostClock(cpu), cpu) for _ in range(2))
    first.start()
    second.start()
    assert Base.forward_one_chunk is not own
    second.stop()
    assert Base.forward_one_chunk is own and second.evidence() == {}


@for_all("channels_last", [False, True])
def test_validation_images_have_the_layout_of_training_images(channels_last: bool) -> None:
    seen = []

    class Schedule:
        def eval(self, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            seen.append(images.stride(1) == 1)
            return torch.zeros(len(images), 4)

    batches = [(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.long))]
    cfg = Config(val_steps=1, channels_last=channels_last)
    validate(nn.Linear(1, 1), batches, cfg, torch.device("cpu"), nullcontext(), Schedule())
    assert seen == [channels_last]
