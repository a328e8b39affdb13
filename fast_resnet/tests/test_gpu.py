"""The kernels, compiled: gradients, graphs, weights, learning rates and overflows.

test_ranks.py and test_uses.py run the kernels on the CPU, in an interpreter that has neither
graphs nor bf16. One or two blocks per layer are enough for every kind of launch.
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
# Median distance of a gradient to float64's: rounding, through ReLUs that flip. PyTorch under
# autocast is 0.07 and 0.19 off (on a CPU), and a network without k3 0.38.
OFF = {"fp16": 0.12, "bf16": 0.3}
SCALE = 1024.0  # of the loss, in fp16
SIZE, CLASSES = 16, 8
BLOCKS = [2, 1, 1, 1]
STEPS = EAGER_STEPS + 4  # the last four by graphs
LR = 2e-4  # the first step's loss falls by 0.04


def stock() -> ResNet:
    """Return torchvision's network, with few ReLU inputs near 0, where rounding flips them."""
    torch.manual_seed(0)
    net = ResNet(Bottleneck, BLOCKS, num_classes=CLASSES)
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.weight, 0.2, 0.4)
            nn.init.uniform_(layer.bias, 0.7, 1.3)
            layer.bias.data *= torch.randint(0, 2, layer.bias.shape) * 2 - 1
    return net.to(DEVICE, memory_format=torch.channels_last)


def by_kernels(precision: str) -> ResNet:
    """Return the same network, converted."""
    net = convert(stock())
    assert not fallback_reason(net, HALF[precision])
    return net


@cache
def batch(seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return smooth images: noise has the same features everywhere, and gradients cancel."""
    generator = torch.Generator().manual_seed(seed)
    images = interpolate(torch.randn(SIZE, 3, 4, 4, generator=generator), size=64, mode="bicubic")
    labels = torch.randint(0, CLASSES, (SIZE,), generator=generator)
    return images.to(DEVICE, memory_format=torch.channels_last), labels.to(DEVICE)


def loss_of(net: nn.Module, seed: int, precision: str | None) -> torch.Tensor:
    """Return the loss of a batch under autocast, or in the network's precision."""
    images, labels = batch(seed)
    with torch.autocast(DEVICE, HALF.get(precision), enabled=precision is not None):
        return cross_entropy(net(images.to(net.fc.weight.dtype)), labels)


def gradients(net: nn.Module, seed: int = 0, precision: str | None = None) -> list[torch.Tensor]:
    """Return the gradients of a batch, in float64."""
    scale = SCALE if precision == "fp16" else 1.0
    net.zero_grad()
    (loss_of(net, seed, precision) * scale).backward()
    return [weight.grad.double() / scale for weight in net.parameters()]


@cache
def exact(seed: int = 0) -> list[torch.Tensor]:
    """Return the first gradients of torchvision's network in float64."""
    return gradients(stock().double(), seed)


@pytest.mark.parametrize("name", ["conv1.weight", "layer2.0.bn1.bias", "layer2.0.bn3.bias"])
@pytest.mark.parametrize("precision", HALF)
def test_nan_weights_give_a_nan_loss(precision: str, name: str) -> None:
    net = by_kernels(precision)
    weight = net.get_parameter(name).data
    weight[(0,) * weight.dim()] = float("nan")
    assert loss_of(net, 0, precision).isnan()


def is_replayed(net: ResNet) -> bool:
    """Return whether its last step ran as graphs."""
    return net._step._graphs is not None and net._step._captured


def test_the_plain_form_is_autograds_in_float64() -> None:
    assert relative(gradients(plain.convert(stock().double())), exact()) < 1e-9


@pytest.mark.parametrize("precision", HALF)
def test_gradients_are_as_near_to_float64_as_autocasts(precision: str) -> None:
    ours, theirs, reference = by_kernels(precision), stock(), stock().double()
    our_gradients, their_gradients = gradients(ours, 0, precision), gradients(theirs, 0, precision)
    gradients(reference)
    our_error, their_error = median(our_gradients, exact()), median(their_gradients, exact())
    our_worst, their_worst = relative(our_gradients, exact()), relative(their_gradients, exact())
    print(f"{precision}: {our_error:.4f}, autocast {their_error:.4f}", our_worst, their_worst)
    assert 0 < our_error < OFF[precision]
    assert our_error < 1.2 * their_error
    assert our_worst < 2 * their_worst
    assert_near(ours, reference)


@pytest.mark.parametrize("hooked", [False, True])
@pytest.mark.parametrize("precision", HALF)
def test_graphs_give_the_gradients_of_eager_steps(precision: str, hooked: bool) -> None:
    """The images differ in each step, so remains of an older step would show.

    Two runs of the same kernels are as far apart as each is from float64. Atomics add in any order,
    a few numbers are then rounded the other way, and each layer multiplies those.
    """
    replayed, eager, rows = by_kernels(precision), by_kernels(precision), []
    for net in (replayed, eager) if hooked else ():
        net.layer2.register_forward_hook(lambda _, x, out: out.clone())
    for seed in range(STEPS):
        by_graphs = gradients(replayed, seed, precision)
        by_launches = gradients(eager, seed, precision)
        eager._step._may_capture = False
        distance, error = median(by_graphs, by_launches), median(by_launches, exact(seed))
        rows.append((is_replayed(replayed), distance, error))
    print(rows)
    assert [graphs for graphs, *_ in rows] == [False] * EAGER_STEPS + [True] * 4
    assert not is_replayed(eager)
    assert all(distance < 1.2 * error < 1.2 * OFF[precision] for _, distance, error in rows)
    assert_near(replayed, eager)


def assert_near(net: ResNet, reference: ResNet) -> None:
    """Check the running statistics and the number of batches."""
    for name, value in reference.named_buffers():
        actual = net.get_buffer(name).double()
        assert torch.allclose(actual, value.double(), rtol=0.01, atol=2e-3), name


class Training:
    """A converted network that trains on one batch again and again, by SGD without momentum."""

    def __init__(self, precision: str) -> None:
        self.net, self.precision = by_kernels(precision), precision
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.0)

    def step(self, lr: float) -> float:
        """Train one step; return the loss before it."""
        scale = SCALE if self.precision == "fp16" else 1.0
        self.optimizer.param_groups[0]["lr"] = lr / scale
        self.optimizer.zero_grad()
        loss = loss_of(self.net, 0, self.precision)
        (loss * scale).backward()
        self.optimizer.step()
        return loss.item()


@pytest.mark.parametrize("precision", HALF)
def test_torchvision_loads_the_trained_weights(precision: str) -> None:
    training = Training(precision)
    for _ in range(STEPS):
        training.step(LR)
    net, theirs = training.net, ResNet(Bottleneck, BLOCKS, num_classes=CLASSES)
    assert is_replayed(net)
    assert net.bn1.num_batches_tracked == STEPS
    theirs.load_state_dict({name: value.cpu() for name, value in net.state_dict().items()})
    theirs = theirs.to(DEVICE, memory_format=torch.channels_last)
    with torch.no_grad():
        ours, expected = (network.eval()(batch(1)[0]) for network in (net, theirs))
    torch.testing.assert_close(ours, expected)


@pytest.mark.parametrize("precision", HALF)
def test_a_new_learning_rate_takes_effect_in_graphs(precision: str) -> None:
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
    assert median(moved, exact()) < OFF["fp16"]  # the infinity left no trace


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA GPUs")
def test_dataparallel_trains_by_torchvisions_code() -> None:
    converted, plain_network = by_kernels("bf16"), stock()
    images, labels = batch()
    with pytest.warns(UserWarning, match="a replica of DataParallel"):
        for net in (converted, plain_network):
            with torch.autocast(DEVICE, torch.bfloat16):
                loss = cross_entropy(nn.DataParallel(net)(images), labels)
            loss.backward()
    pairs = zip(converted.parameters(), plain_network.parameters(), strict=True)
    actual, expected = zip(*((ours.grad, theirs.grad) for ours, theirs in pairs), strict=True)
    assert median(actual, expected) < 0.02
