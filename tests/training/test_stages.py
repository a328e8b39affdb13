"""Pipeline stages: together they are the network, and the most expensive one is cheap."""

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
from course.training.evidence.pipeline_passes import Actions
from course.training.ranks.group import validate
from labs.day4_3_model_parallel import pipelines

SIZES = {"vit_tiny_patch16_224": 64, "resnet18": 64, "coatnet_pico_rw_224": 64}


def highest(cost: list[int], begins: list[int]) -> int:
    return max(sum(cost[a:b]) for a, b in pairwise([0, *begins, len(cost)]))


@for_all("pieces", [4, 6, 9, 11])
def test_cuts_are_the_best_of_all(pieces: int) -> None:
    numbers = random.Random(pieces)
    for count in range(1, min(5, pieces - 2) + 1):
        for _ in range(20):
            cost = [numbers.randint(0, 9) for _ in range(pieces)]
            begins = pipelines.balance(cost, count)
            ways = combinations(range(2, pieces - 1), count - 1)
            assert highest(cost, begins) == min(highest(cost, way) for way in ways)
            assert begins == sorted({*begins}) and len(begins) == count - 1
            assert all(2 <= begin <= pieces - 2 for begin in begins)  # each part has a block
    assert highest([1.0] * 46, pipelines.balance([1.0] * 46, 8)) == 6  # 45 million ways


@pytest.mark.slow
@for_all("model", SIZES)
def test_the_parts_compute_the_same(model: str) -> None:
    torch.manual_seed(0)
    net = models.create(model, 5, SIZES[model]).eval()
    images = torch.randn(2, 3, SIZES[model], SIZES[model])
    with torch.no_grad():
        expected = net(images)
        for stage_split in ("gflop", "1,3,4"):
            parts = pipelines.split(net, 4, stage_split, SIZES[model])
            torch.testing.assert_close(nn.Sequential(*parts)(images), expected)
    assert sum(map(models.parameter_count, parts)) == models.parameter_count(net)


def test_weights_and_gflop_are_balanced_differently() -> None:
    with torch.device("meta"):
        net = models.create("coatnet_pico_rw_224", 16, 224)
    costs = pipelines.piece_costs(net, 224)
    begins = {name: pipelines.balance([cost[name] for cost in costs], 2) for name in costs[0]}
    assert begins == {"weights": [11], "gflop": [7]}


def test_a_cut_that_does_not_fit_is_refused() -> None:
    net = models.create("resnet18", 5)
    with pytest.raises(ValueError, match="9 stages, but only 8 blocks"):
        pipelines.split(net, 9, "gflop", 64)
    with pytest.raises(
        ValueError, match="stage_split='3': 3 stages need the numbers of the 2 blocks"
    ):
        pipelines.split(net, 3, "3", 64)
    with pytest.raises(
        ValueError, match="stage_split='8': 2 stages need the numbers .* from 1 to 7"
    ):
        pipelines.split(net, 2, "8", 64)


def test_numbers_of_stages() -> None:
    assert pipelines.stage_numbers("1f1b", 1, 4) == ([1], 4)
    assert pipelines.stage_numbers("interleaved", 1, 4) == ([1, 5], 8)


def test_a_stage_sends_contiguous_tensors() -> None:
    class Transpose(nn.Module):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            return features.transpose(1, 2)

    features = torch.randn(2, 3, 4, requires_grad=True)
    result = pipelines.Stage(Transpose(), torch.autocast("cpu", enabled=False))(features)
    assert result.is_contiguous() and result.shape == (2, 4, 3)
    (gradient,) = torch.autograd.grad(result, features, torch.randn(2, 4, 3))
    assert gradient.is_contiguous() and gradient.shape == features.shape


def test_actions_restore_pytorchs_methods() -> None:
    from torch.distributed.pipelining.stage import _PipelineStageBase as Base

    method, cpu = Base.forward_one_chunk, torch.device("cpu")
    first, second = (Actions(HostClock(cpu), cpu) for _ in range(2))
    first.start()
    second.start()
    assert Base.forward_one_chunk is not method
    second.stop()
    assert Base.forward_one_chunk is method and second.evidence() == {}


@for_all("channels_last", [False, True])
def test_validation_images_have_the_layout_of_training_images(channels_last: bool) -> None:
    layouts = []

    class Schedule:
        def eval(self, images: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
            layouts.append(images.stride(1) == 1)
            return torch.zeros(len(images), 4)

    batches = [(torch.zeros(2, 3, 8, 8, dtype=torch.uint8), torch.zeros(2, dtype=torch.long))]
    cfg = Config(val_steps=1, channels_last=channels_last)
    validate(nn.Linear(1, 1), batches, cfg, torch.device("cpu"), nullcontext(), Schedule())
    assert layouts == [channels_last]
