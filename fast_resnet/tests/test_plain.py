"""The algebra in plain PyTorch: gradients are autograd's, statistics BatchNorm's."""

import copy

import pytest
import torch
from small import batch, median, network, rounding_bound
from torch import nn
from torch.nn.functional import cross_entropy
from torch.optim.swa_utils import AveragedModel
from torchvision.models import resnet50

from fast_resnet import formulas, plain


@pytest.mark.parametrize("joins", [True, False])
def test_the_formulas_are_autograds(joins: bool) -> None:
    differences = formulas.differences(joins=joins)
    assert len(differences) == 5 + joins
    assert max(differences.values()) < 1e-12, differences


@pytest.fixture(scope="module")
def pair() -> tuple[nn.Module, nn.Module]:
    """Return ResNet-50 in float64 by torchvision and by the algebra, each after one step."""
    torch.manual_seed(0)
    net = resnet50(num_classes=4).double()
    ours = plain.convert(copy.deepcopy(net))
    images = torch.randn(4, 3, 32, 32, dtype=torch.float64)
    for model in (net, ours):
        scores = model(images)
        cross_entropy(scores, torch.arange(4)).backward()
        model.scores = scores.detach()
    return net, ours


@pytest.mark.slow
def test_every_gradient_of_resnet50_is_autograds(pair: tuple) -> None:
    net, ours = pair
    assert (net.scores - ours.scores).abs().max() < 1e-10
    for (name, expected), actual in zip(net.named_parameters(), ours.parameters(), strict=True):
        distance = (actual.grad - expected.grad).norm() / expected.grad.norm()
        assert distance < 1e-9, name


@pytest.mark.slow
def test_running_statistics_are_batchnorms(pair: tuple) -> None:
    net, ours = pair
    for (name, expected), actual in zip(net.named_buffers(), ours.buffers(), strict=True):
        assert (actual - expected).abs().max() < 1e-10, name


@pytest.mark.slow
def test_torchvision_loads_the_weights(pair: tuple) -> None:
    _, ours = pair
    theirs = resnet50(num_classes=4).double()
    theirs.load_state_dict(ours.state_dict())
    images = torch.randn(2, 3, 32, 32, dtype=torch.float64)
    averaged = AveragedModel(ours).module  # a copy, as for validation
    with torch.no_grad():
        expected = theirs.eval()(images)
        assert torch.equal(copy.deepcopy(ours).eval()(images), expected)
        assert torch.equal(averaged.eval()(images), expected)


def step(model: nn.Module, precision: torch.dtype | None, scale: float = 1.0) -> list[torch.Tensor]:
    """Return the gradients of one step, under autocast if a precision is given, unscaled."""
    images, labels = batch()
    with torch.autocast("cpu", precision, enabled=precision is not None):
        loss = cross_entropy(model(images.to(next(model.parameters()).dtype)), labels)
    (loss * scale).backward()
    return [weight.grad.double() / scale for weight in model.parameters()]


@pytest.mark.slow
@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_under_autocast_it_is_as_near_to_float64_as_roundings_allow(precision: torch.dtype) -> None:
    net = network()
    exact = step(copy.deepcopy(net).double(), None)
    autocast_error = median(step(copy.deepcopy(net), precision, 1024.0), exact)
    our_error = median(step(plain.convert(copy.deepcopy(net)), precision, 1024.0), exact)
    bound = rounding_bound(net, precision)
    assert 0 < our_error < bound and 0 < autocast_error < bound


def test_an_overflow_reaches_the_gradients() -> None:
    """GradScaler skips a step whose gradients are not finite, so every overflow must show."""
    block = network().layer1[0]
    z = torch.randn(2, 16, 4, 4, requires_grad=True)
    with torch.autocast("cpu", torch.float16):
        out = plain.linear_norm(z, block.conv3, block.bn3, torch.zeros(2, 64, 4, 4))
    (out * 6e4).sum().backward()
    assert not z.grad.isfinite().all()


def test_frozen_statistics_stay() -> None:
    net = plain.convert(network())
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            layer.eval()
    before = copy.deepcopy(net.state_dict())
    net(batch()[0])
    assert all(torch.equal(before[name], value) for name, value in net.state_dict().items())
