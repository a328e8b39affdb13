"""The kernels, compiled: gradients, graphs, weights, learning rates and overflows.

test_ranks.py and test_uses.py have the kernels on the CPU, in an interpreter that knows neither
graphs nor bf16. A block or two of each layer are enough: every kind of launch is there.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

import pytest
import torch
from small import median, relative
from torch import nn
from torch.nn.functional import cross_entropy, interpolate
from torchvision.models.resnet import Bottleneck, ResNet

from fast_resnet import convert, fallback_reason, plain

pytest.importorskip("triton", reason="the kernels are written in Triton, which is not here")

from fast_resnet.model import EAGER_STEPS  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]
DEVICE = "cuda"
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
# Of a gradient to float64's, in the median: what rounding does, through ReLUs that flip. PyTorch
# under autocast is 0.07 and 0.19 off (on a CPU), and a network whose k3 is forgotten 0.38.
OFF = {"fp16": 0.12, "bf16": 0.3}
SCALE = 1024.0  # of the loss, in fp16
SIZE, CLASSES = 16, 8
BLOCKS = [2, 1, 1, 1]
STEPS = EAGER_STEPS + 4  # the last four by graphs
LR = 2e-4  # the first step's loss falls by 0.04


def stock() -> ResNet:
    """torchvision's network, whose ReLUs get few numbers near 0: there rounding flips them."""
    torch.manual_seed(0)
    net = ResNet(Bottleneck, BLOCKS, num_classes=CLASSES)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.2, 0.4)
            nn.init.uniform_(layer.bias, 0.7, 1.3)
            layer.bias.data *= torch.randint(0, 2, layer.bias.shape) * 2 - 1
    return net.to(DEVICE, memory_format=torch.channels_last)


def by_kernels(precision: str) -> ResNet:
    """The same network, converted."""
    net = convert(stock())
    assert not fallback_reason(net, HALF[precision])
    return net


@cache
def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with shapes in them: noise has the same features everywhere, and gradients cancel."""
    generator = torch.Generator().manual_seed(seed)
    images = interpolate(torch.randn(SIZE, 3, 4, 4, generator=generator), size=64, mode="bicubic")
    labels = torch.randint(0, CLASSES, (SIZE,), generator=generator)
    return images.to(DEVICE, memory_format=torch.channels_last), labels.to(DEVICE)


def loss_of(net: nn.Module, seed: int, precision: str | None) -> torch.Tensor:
    """That of a batch under autocast; of no precision in the network's own."""
    images, labels = batch(seed)
    with torch.autocast(DEVICE, HALF.get(precision), enabled=precision is not None):
        return cross_entropy(net(images.to(net.fc.weight.dtype)), labels)


def gradients(net: nn.Module, seed: int = 0, precision: str | None = None) -> list[torch.Tensor]:
    """Those of a batch, in float64."""
    scale = SCALE if precision == "fp16" else 1.0
    net.zero_grad()
    (loss_of(net, seed, precision) * scale).backward()
    return [weight.grad.double() / scale for weight in net.parameters()]


@cache
def exact(seed: int = 0) -> list[torch.Tensor]:
    """The first gradients of torchvision's network in float64."""
    return gradients(stock().double(), seed)


@pytest.mark.parametrize("name", ["conv1.weight", "layer2.0.bn1.bias", "layer2.0.bn3.bias"])
@pytest.mark.parametrize("precision", HALF)
def test_what_is_not_a_number_reaches_the_loss(precision: str, name: str) -> None:
    net = by_kernels(precision)
    weight = net.get_parameter(name).data
    weight[(0,) * weight.dim()] = float("nan")
    assert loss_of(net, 0, precision).isnan()


def is_replayed(net: ResNet) -> bool:
    """Was its last step one of graphs?"""
    return net._step._graphs is not None and net._step._captured


def test_the_plain_form_is_autograds_in_float64() -> None:
    assert relative(gradients(plain.convert(stock().double())), exact()) < 1e-9


@pytest.mark.parametrize("precision", HALF)
def test_gradients_are_as_near_to_float64_as_autocasts(precision: str) -> None:
    ours, theirs, wanted = by_kernels(precision), stock(), stock().double()
    found, usual = gradients(ours, 0, precision), gradients(theirs, 0, precision)
    gradients(wanted)
    off, as_usual = median(found, exact()), median(usual, exact())
    worst, worst_usual = relative(found, exact()), relative(usual, exact())
    print(f"{precision}: {off:.4f}, autocast {as_usual:.4f}; {worst:.3f}, {worst_usual:.3f}")
    assert 0 < off < OFF[precision]
    assert off < 1.2 * as_usual
    assert worst < 2 * worst_usual
    assert_near(ours, wanted)


@pytest.mark.parametrize("precision", HALF)
def test_graphs_give_what_steps_without_them_give(precision: str) -> None:
    """Other images in each step: what a graph still has of an older one would be seen.

    Two runs of the same kernels are as far apart as each is from float64. Atomics add in any order,
    a few numbers are then rounded the other way, and each layer multiplies those.
    """
    replayed, eager, each = by_kernels(precision), by_kernels(precision), []
    for seed in range(STEPS):
        found, again = gradients(replayed, seed, precision), gradients(eager, seed, precision)
        eager._step._may_capture = False
        each.append((is_replayed(replayed), median(found, again), median(again, exact(seed))))
    print(each)
    assert [graphs for graphs, *_ in each] == [False] * EAGER_STEPS + [True] * 4
    assert not is_replayed(eager)
    assert all(apart < 1.2 * off < 1.2 * OFF[precision] for _, apart, off in each)
    assert_near(replayed, eager)


def assert_near(net: ResNet, wanted: ResNet) -> None:
    """Their running statistics, and how many batches they have counted."""
    for name, value in wanted.named_buffers():
        found = net.get_buffer(name).double()
        assert torch.allclose(found, value.double(), rtol=0.01, atol=2e-3), name


class Training:
    """A network by the algebra on one batch, again and again, by SGD without momentum."""

    def __init__(self, precision: str) -> None:
        self.net, self.precision = by_kernels(precision), precision
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.0)

    def step(self, lr: float) -> float:
        """The loss before it."""
        scale = SCALE if self.precision == "fp16" else 1.0
        self.optimizer.param_groups[0]["lr"] = lr / scale
        self.optimizer.zero_grad()
        loss = loss_of(self.net, 0, self.precision)
        (loss * scale).backward()
        self.optimizer.step()
        return loss.item()


@pytest.mark.parametrize("precision", HALF)
def test_what_is_trained_is_loaded_by_torchvision(precision: str) -> None:
    training = Training(precision)
    for _ in range(STEPS):
        training.step(LR)
    net, theirs = training.net, ResNet(Bottleneck, BLOCKS, num_classes=CLASSES)
    assert is_replayed(net)
    assert net.bn1.num_batches_tracked == STEPS
    theirs.load_state_dict({name: value.cpu() for name, value in net.state_dict().items()})
    theirs = theirs.to(DEVICE, memory_format=torch.channels_last)
    with torch.no_grad():
        ours, wanted = (each.eval()(batch(1)[0]) for each in (net, theirs))
    torch.testing.assert_close(ours, wanted)


@pytest.mark.parametrize("precision", HALF)
def test_another_learning_rate_takes_effect_in_graphs(precision: str) -> None:
    training = Training(precision)
    for _ in range(EAGER_STEPS + 1):
        training.step(0.0)
    assert is_replayed(training.net)
    losses = [training.step(lr) for lr in (LR, 4 * LR, 0.0, LR)]
    falls = [before - after for before, after in pairwise(losses)]
    print(losses, falls)
    assert falls[1] > 2 * falls[0] > 0
    assert abs(falls[2]) < 0.2 * falls[0]
    assert is_replayed(training.net)


@pytest.mark.parametrize("steps", [0, STEPS], ids=["eager", "graphs"])
def test_an_infinite_loss_skips_a_step_and_halves_the_scale(steps: int) -> None:
    net = by_kernels("fp16")
    for _ in range(steps):
        gradients(net, 0, "fp16")
    optimizer = torch.optim.SGD(net.parameters(), lr=1.0)
    scaler = torch.amp.GradScaler(DEVICE, init_scale=SCALE)
    before = [weight.detach().clone() for weight in net.parameters()]
    for factor in (float("inf"), 1.0):
        assert all(map(torch.equal, net.parameters(), before))
        optimizer.zero_grad()
        scaler.scale(loss_of(net, 0, "fp16") * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        assert scaler.get_scale() == SCALE / 2
    assert is_replayed(net) == (steps > 0)
    moved = [(old - new.detach()).double() for old, new in zip(before, net.parameters())]
    assert median(moved, exact()) < OFF["fp16"]  # nothing of the infinity is left


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_dataparallel_trains_by_torchvisions_code() -> None:
    converted, usual = by_kernels("bf16"), stock()
    images, labels = batch()
    with pytest.warns(UserWarning, match="a replica of DataParallel"):
        for net in (converted, usual):
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = cross_entropy(nn.DataParallel(net)(images), labels)
            loss.backward()
    pairs = zip(converted.parameters(), usual.parameters(), strict=True)
    found, wanted = zip(*((ours.grad, theirs.grad) for ours, theirs in pairs), strict=True)
    assert median(found, wanted) < 0.02
