"""What the lab's three functions must do: each look says what it saw, or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from time import sleep
from typing import Any

import torch
from torch import nn

from labs.lab_inference.fold import Fold, folded, norms
from labs.lab_inference.int8 import ToInt8, scale_of
from labs.lab_inference.latency import Latencies

COUNT, WARM_UP = 9, 3
FIRST_S, LONGEST_S = 0.03, 0.006  # of the calls that warm up, and of the others


class Aside:
    """A device as a GPU is one: it is asked, and works while the one who asked goes on."""

    def __init__(self, workers: ThreadPoolExecutor) -> None:
        self._workers, self._asked = workers, list[Future]()
        self.takes: list[float] = []  # seconds, a call each
        self.events: list[str] = []

    def call(self) -> None:
        """Ask for one more piece of work: the first ones take long, the others by turns."""
        number = len(self.takes)
        took = FIRST_S if number < WARM_UP else LONGEST_S * (1 + number % 3) / 3
        self.takes.append(took)
        self.events.append("call")
        self._asked.append(self._workers.submit(sleep, took))

    def wait(self) -> None:
        """Return once all of it is done."""
        self.events.append("wait")
        for each in self._asked:
            each.result()


@contextmanager
def _device() -> Iterator[Aside]:
    with ThreadPoolExecutor(max_workers=1) as workers:
        yield Aside(workers)


def times_calls(latencies: Latencies) -> str:
    """Is each call timed until the device is done, and none of those that warm up?"""
    with _device() as device:
        times = latencies(device.call, device.wait, COUNT, WARM_UP)
    made = len(device.takes)
    assert made == WARM_UP + COUNT, (
        f"{made} calls were made: {WARM_UP} should warm up, and {COUNT} be timed"
    )
    assert isinstance(times, list) and len(times) == COUNT, (
        f"a list of {COUNT} times is asked for, one a call, and it returns {times!r}"[:200]
    )
    takes = device.takes[WARM_UP:]
    short = [place for place in range(COUNT) if times[place] < takes[place]]
    assert not short, _too_short(times[short[0]], takes[short[0]])
    assert times[0] < 2 * FIRST_S, (
        f"the first time is {1e3 * times[0]:.0f} ms, and its call takes {1e3 * takes[0]:.0f}: it "
        f"waited for calls that warm up. Wait after each of those, too"
    )
    return f"{COUNT} calls of {1e3 * min(takes):.0f} to {1e3 * max(takes):.0f} ms, each timed whole"


def _too_short(told: float, takes: float) -> str:
    return (
        f"a call that takes the device {1e3 * takes:.0f} ms is said to take {1e3 * told:.3f}: "
        f"call() returns before the device is done. Wait, and only then look at the clock"
    )


def waits_each_time(latencies: Latencies) -> str:
    """Does no call begin before the device is done with the one before it?"""
    with _device() as device:
        latencies(device.call, device.wait, COUNT, WARM_UP)
    events = device.events
    alone = [events[at + 1] == "wait" for at, each in enumerate(events[:-1]) if each == "call"]
    assert all(alone) and len(alone) == WARM_UP + COUNT, (
        f"{alone.count(False) + (events[-1] == 'call')} calls were not waited for before the next: "
        f"they queue up, and each time is also the time of those before it"
    )
    return "the device is idle whenever a call begins"


def folds(fold: Fold) -> str:
    """Is a convolution with the new weights what it was with the BatchNorm behind it?"""
    conv, norm = _pair()
    given = deepcopy((conv.weight, conv.bias, norm))
    with torch.no_grad():
        found = fold(*given)
    assert isinstance(found, tuple) and len(found) == 2, (
        f"it returns {type(found).__name__}: two tensors are asked for, the weight and the bias"
    )
    for name, got, was in zip(("weight", "bias"), found, (conv.weight, conv.bias)):
        assert isinstance(got, torch.Tensor) and got.shape == was.shape, (
            f"the {name} has become {tuple(getattr(got, 'shape', ()))}: it must stay "
            f"{tuple(was.shape)}"
        )
    states = [norm.state_dict().values(), given[2].state_dict().values()]
    same = [torch.equal(*pair) for pair in zip(*states)]
    assert torch.equal(given[0], conv.weight) and torch.equal(given[1], conv.bias) and all(same), (
        "what it was given has changed: make new tensors, instead of *=, += and functions with _"
    )
    weight, bias = found
    for name, got, wrong, right in (
        ("weight", weight, *_weights(conv, norm)),
        ("bias", bias, *_biases(conv, norm)),
    ):
        assert torch.allclose(got, right, rtol=1e-5, atol=1e-5), _slip(name, got, wrong, right)
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        once = nn.functional.conv2d(images, weight, bias, padding=1)
        error = float((once - norm(conv(images))).abs().max())
    assert error < 1e-4, f"the results differ by {error:.1g}"
    return f"one convolution does what two layers did, to {error:.0e}"


def _pair() -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """As many outputs as inputs as columns, so that no wrong shape raises; a variance near eps."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3).eval()
    with torch.no_grad():
        norm.weight.copy_(torch.tensor([0.5, 1.5, 2.0]))
        norm.bias.copy_(torch.tensor([0.3, -1.0, 2.0]))
        norm.running_mean.copy_(torch.tensor([0.7, -0.4, 1.1]))
        norm.running_var.copy_(torch.tensor([1e-5, 0.3, 4.0]))
    return conv, norm


def _weights(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[dict[str, Any], torch.Tensor]:
    """Wrong weights by what was forgotten, and the right one."""
    variance, eps = norm.running_var, norm.eps
    root, was = (variance + eps).sqrt(), conv.weight.detach()
    right = (norm.weight / root).detach()
    at = (slice(None), None, None, None)
    return {
        "eps is forgotten: it is added to the variance, under the root": was
        * (norm.weight / variance.sqrt())[at],
        "eps belongs under the root, with the variance": was
        * (norm.weight / (variance.sqrt() + eps))[at],
        "it divides by the variance: take the root of variance + eps": was
        * (norm.weight / (variance + eps))[at],
        "BatchNorm's own weight is forgotten": was / root[at],
        "it is multiplied by the root: divide": was * (norm.weight * root)[at],
        "it is scaled along the kernel's columns: give the scale the shape (outputs, 1, 1, 1)": was
        * right,
        "it is scaled along the kernel's rows: give the scale the shape (outputs, 1, 1, 1)": was
        * right[:, None],
        "it is scaled along the inputs: give the scale the shape (outputs, 1, 1, 1)": was
        * right[:, None, None],
        "it is not scaled": was,
    }, was * right[at]


def _biases(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[dict[str, Any], torch.Tensor]:
    """Wrong biases by what was forgotten, and the right one."""
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    bias, mean, offset = conv.bias.detach(), norm.running_mean, norm.bias.detach()
    return {
        "the convolution's own bias goes through BatchNorm as well, so it is scaled": bias
        - mean * scale
        + offset,
        "the mean is forgotten: it is subtracted before anything is scaled": bias * scale + offset,
        "the mean is subtracted before anything is scaled, so it is scaled, too": bias * scale
        - mean
        + offset,
        "BatchNorm's own bias is forgotten": (bias - mean) * scale,
        "BatchNorm's own bias comes last: it is not scaled": (bias - mean + offset) * scale,
        "the convolution's own bias is forgotten": offset - mean * scale,
        "the mean is subtracted, not added": (bias + mean) * scale + offset,
    }, (bias - mean) * scale + offset


def _slip(name: str, got: torch.Tensor, wrong: dict[str, Any], right: torch.Tensor) -> str:
    for words, value in wrong.items():
        if torch.allclose(got, value, rtol=1e-5, atol=1e-5):
            return f"the {name}: {words}"
    return (
        f"the {name} differs by up to {float((got - right).abs().max()):.2g} from what it should be"
    )


def folds_a_network(fold: Fold) -> str:
    """Has a network no BatchNorm left, and still gives the scores that it gave?"""
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip
    images = 2 + 3 * torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        network(images)  # in training, so the statistics are no longer 0 and 1
        before = network.eval()(images)
        found = folded(network, fold)
        error = float((found(images) - before).abs().max())
    assert norms(found) == 0 and error < 1e-4, f"a network's scores differ by {error:.1g}"
    return (
        f"a network of two convolutions has no BatchNorm left, and its scores differ by {error:.0e}"
    )


def rounds_to_int8(to_int8: ToInt8) -> str:
    """Does each number become the nearest step, and what is too large the last one?"""
    numbers, scale = torch.linspace(-100, 100, 2001), torch.tensor(0.5)
    found = _steps(to_int8, numbers, scale, 127)
    right = (numbers / scale).round().clamp(-127, 127)
    inside = numbers.abs() < 127 * scale
    assert not torch.equal(found[inside], (numbers * scale).round()[inside]), (
        "it multiplies by the scale: how many steps a number is, division says"
    )
    cut = (numbers / scale).trunc()[inside]
    assert not torch.equal(found[inside], cut), (
        f"{numbers[inside][-1] - 0.1:.1f} / 0.5 is not cut off but rounded: .round() before .to()"
    )
    far = found[numbers > 127 * scale]
    assert (far == 127).all(), (
        f"{numbers[-1]:.0f} with steps of 0.5 becomes {int(far[-1])}: it should be 127, the "
        f"largest. Clamp before .to(torch.int8), which goes round in a circle"
    )
    near = found[numbers < -127 * scale]
    assert (near == -127).all(), (
        f"{numbers[0]:.0f} with steps of 0.5 becomes {int(near[0])}: it should be −127, so that 0 "
        f"stays in the middle"
    )
    wrong = int((found != right).sum())
    assert wrong == 0, f"{wrong} of {len(numbers)} numbers become another step than the nearest"
    return "2,001 numbers became the nearest step, and what is too large the last"


def _steps(to_int8: ToInt8, numbers: torch.Tensor, scale: torch.Tensor, most: int) -> torch.Tensor:
    found = to_int8(numbers, scale, most)
    assert isinstance(found, torch.Tensor) and found.dtype == torch.int8, (
        f"it returns {getattr(found, 'dtype', type(found).__name__)}, and not int8"
    )
    assert found.shape == numbers.shape, f"{tuple(numbers.shape)} became {tuple(found.shape)}"
    return found.float()


def keeps_to_its_bits(to_int8: ToInt8) -> str:
    """With a scale a channel, and with fewer bits: is what is lost at most half a step?"""
    torch.manual_seed(0)
    weight = torch.randn(6, 4, 3, 3) * 10.0 ** torch.arange(-2, 4).reshape(6, 1, 1, 1)
    for most in (127, 7):
        scale = scale_of(weight, most, per_channel=True)
        far = int(_steps(to_int8, 9 * weight, scale, most).abs().max())
        assert far <= most, f"with most={most} it gives {far}: clamp to most, whatever that is"
        found = _steps(to_int8, weight, scale, most)
        lost = ((found * scale - weight).abs() / scale).max()
        assert lost <= 0.5 + 1e-4, f"{lost:.2f} of a step is lost: the nearest is half a step away"
    return "with a scale for each channel, and with 8 and 4 bits, at most half a step is lost"
