"""Pipeline stages: together they are the network, and the costliest is as cheap as possible."""

import random
from itertools import combinations, pairwise

import pytest
import torch
from torch import nn

from course.training import models
from labs.pipeline import pipelines

SIZES = {"vit_tiny_patch16_224": 64, "resnet18": 64, "coatnet_pico_rw_224": 64}


def highest(cost: list[int], begins: list[int]) -> int:
    return max(sum(cost[a:b]) for a, b in pairwise([0, *begins, len(cost)]))


@pytest.mark.parametrize("pieces", [4, 6, 9, 11])
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
    assert highest([1.0] * 46, pipelines.balance([1.0] * 46, 8)) == 6  # of 45 million splits


@pytest.mark.slow
@pytest.mark.parametrize("model", SIZES)
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
