"""The gradient's noise: found where it is known, and nothing changed by looking."""

import math

import pytest
import torch
from torch import nn

from course.topics import large_batch
from course.topics.large_batch import Noise


def known(model: nn.Linear, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """The square of the mean gradient over all images, and the variance of one image's."""
    each = []
    for image, label in zip(images, labels):
        loss = nn.functional.cross_entropy(model(image[None]), label[None])
        each.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, model.parameters())]))
    gradients = torch.stack(each)
    return float(gradients.mean(0).square().sum()), float(gradients.var(0).sum())


def test_noise_and_gradient_are_those_of_all_images() -> None:
    torch.manual_seed(0)
    model = nn.Linear(6, 3)
    images, labels = torch.randn(4000, 6) + 1, torch.randint(3, (4000,))
    gradient, noise = known(model, images, labels)
    batches = [(images[a : a + 64], labels[a : a + 64]) for a in range(0, 4000 - 64, 64)]
    found = large_batch.noise(model, batches)
    assert found.noise == pytest.approx(noise, rel=0.1)
    assert found.gradient == pytest.approx(gradient, rel=0.2)
    assert found.scale == pytest.approx(noise / gradient, rel=0.3)
    assert found.steps == len(batches)


def test_equal_images_have_no_noise() -> None:
    model = nn.Linear(6, 3)
    found = large_batch.noise(model, [(torch.ones(8, 6), torch.zeros(8, dtype=torch.long))])
    assert found.noise == pytest.approx(0, abs=1e-5) and found.scale < 1e-3


def test_looking_changes_nothing() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 2))
    before = {name: each.clone() for name, each in model.state_dict().items()}
    large_batch.noise(model, [(torch.randn(16, 3, 6, 6), torch.randint(2, (16,)))], parts=4)
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(each.grad is None for each in model.parameters())


def test_what_a_batch_takes() -> None:
    noise = Noise(noise=1000.0, gradient=1.0, steps=1)
    assert noise.scale == 1000
    assert noise.updates(1000) == 2 and noise.images(1000) == 2
    assert noise.updates(1e9) == pytest.approx(1) and noise.images(1) == pytest.approx(1.001)
    assert Noise(1.0, -0.1, 1).scale == math.inf


@pytest.mark.parametrize("batches, parts, said", [
    ([], 8, "no batch"),
    ([(torch.ones(9, 6), torch.zeros(9, dtype=torch.long))], 8, "a batch of 9 in parts=8"),
    ([(torch.ones(9, 6), torch.zeros(9, dtype=torch.long))], 1, "2 or more"),
])  # fmt: skip
def test_bad_batches_are_named(batches: list, parts: int, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        large_batch.noise(nn.Linear(6, 3), batches, parts)
