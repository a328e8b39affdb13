"""Checks of the lab's three functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from copy import deepcopy

import torch
from torch import nn

from course.checks.async_device import FakeAsyncDevice
from labs.lab_inference.int8 import ToInt8, scale_of
from labs.lab_inference.latency import Latencies
from labs.lab_inference.variants import Fold, count_batchnorms, fold_batchnorms

COUNT, WARM_UP = 9, 3
WARM_UP_S, LONGEST_S = 0.03, 0.006  # durations of a call


def fake_device() -> FakeAsyncDevice:
    """Create a device whose first calls take long; later ones cycle through three durations."""
    return FakeAsyncDevice(
        lambda number: WARM_UP_S if number < WARM_UP else LONGEST_S * (1 + number % 3) / 3
    )


def check_times(latencies: Latencies) -> str:
    """Check that each call is timed until the device is done, without the warm-up."""
    with fake_device() as device:
        times = latencies(device.call, device.wait, COUNT, WARM_UP)
    calls = len(device.spans)
    assert calls == WARM_UP + COUNT, (
        f"{calls} calls were made: {WARM_UP} should warm up, and {COUNT} be timed"
    )
    assert isinstance(times, list) and len(times) == COUNT, (
        f"expected a list of {COUNT} times, one per call, but it returns {times!r}"[:200]
    )
    durations = [end - begin for begin, end in device.spans[WARM_UP:]]
    for measured, duration in zip(times, durations):
        assert measured >= duration, (
            f"a call that takes the device {1e3 * duration:.0f} ms is measured as "
            f"{1e3 * measured:.3f}: call() returns before the device is done. Wait, and only then "
            f"look at the clock"
        )
    assert times[0] < 2 * WARM_UP_S, (
        f"the first time is {1e3 * times[0]:.0f} ms, and its call takes {1e3 * durations[0]:.0f}: "
        f"it waited for calls that warm up. Wait after each of those, too"
    )
    shortest, longest = 1e3 * min(durations), 1e3 * max(durations)
    return f"{COUNT} calls of {shortest:.0f} to {longest:.0f} ms, each timed to its end"


def check_waits(latencies: Latencies) -> str:
    """Check that no call begins before the device is done with the one before."""
    with fake_device() as device:
        latencies(device.call, device.wait, COUNT, WARM_UP)
    pairs = zip(device.events, [*device.events[1:], ""])
    queued = sum(pair[0] == "call" and pair[1] != "wait" for pair in pairs)
    assert not queued, (
        f"{queued} calls were not waited for before the next: they queue up, and each time is also "
        f"the time of those before it"
    )
    return "the device is idle whenever a call begins"


def check_fold(fold: Fold) -> str:
    """Check that a convolution with the new weights computes what both layers did."""
    conv, norm = _layers()
    arguments = deepcopy((conv.weight, conv.bias, norm))
    with torch.no_grad():
        result = fold(*arguments)
    assert isinstance(result, tuple) and len(result) == 2, (
        f"it returns {type(result).__name__}: expected two tensors, the weight and the bias"
    )
    for name, new, old in zip(("weight", "bias"), result, (conv.weight, conv.bias)):
        assert isinstance(new, torch.Tensor) and new.shape == old.shape, (
            f"the {name} has become {tuple(getattr(new, 'shape', ()))}: it must stay "
            f"{tuple(old.shape)}"
        )
    before = [conv.weight, conv.bias, *norm.state_dict().values()]
    after = [*arguments[:2], *arguments[2].state_dict().values()]
    assert all(map(torch.equal, before, after)), (
        "its arguments have changed: create new tensors instead of *=, += and functions with _"
    )
    weight, bias = result
    _compare("weight", weight, *_weights(conv, norm))
    _compare("bias", bias, *_biases(conv, norm))
    images = torch.randn(2, 3, 8, 8)
    with torch.no_grad():
        folded = nn.functional.conv2d(images, weight, bias, padding=1)
        error = float((folded - norm(conv(images))).abs().max())
    assert error < 1e-4, f"the results differ by {error:.1g}"
    return f"one convolution does what two layers did, to {error:.0e}"


def _layers() -> tuple[nn.Conv2d, nn.BatchNorm2d]:
    """Create layers with equal dimensions (no wrong shape raises), and a variance near eps."""
    torch.manual_seed(0)
    conv, norm = nn.Conv2d(3, 3, 3, padding=1), nn.BatchNorm2d(3, eps=1e-3).eval()
    norm.weight.data = torch.tensor([0.5, 1.5, 2.0])
    norm.bias.data = torch.tensor([0.3, -1.0, 2.0])
    norm.running_mean = torch.tensor([0.7, -0.4, 1.1])
    norm.running_var = torch.tensor([1e-3, 0.3, 4.0])
    return conv, norm


def _weights(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the right weight, and the wrong ones that known mistakes give, by message."""
    variance, eps, gamma = norm.running_var, norm.eps, norm.weight.detach()
    root, weight = (variance + eps).sqrt(), conv.weight.detach()
    shape = "give the scale the shape (outputs, 1, 1, 1)"
    scales = {
        "eps is forgotten: it is added to the variance, under the root": gamma / variance.sqrt(),
        "eps belongs under the root, with the variance": gamma / (variance.sqrt() + eps),
        "it adds 1e-5: add the layer's own norm.eps": gamma / (variance + 1e-5).sqrt(),
        "it divides by the variance: take the root of variance + eps": gamma / (variance + eps),
        "BatchNorm's own weight is forgotten": 1 / root,
        "it is multiplied by the root: divide": gamma * root,
        "it is not scaled": torch.ones(3),
    }
    scale = gamma / root
    mistakes = {name: weight * wrong[:, None, None, None] for name, wrong in scales.items()} | {
        f"it is scaled along the kernel's columns: {shape}": weight * scale,
        f"it is scaled along the kernel's rows: {shape}": weight * scale[:, None],
        f"it is scaled along the inputs: {shape}": weight * scale[:, None, None],
    }
    return weight * scale[:, None, None, None], mistakes


def _biases(conv: nn.Conv2d, norm: nn.BatchNorm2d) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Return the right bias, and the wrong ones that known mistakes give, by message."""
    scale = (norm.weight / (norm.running_var + norm.eps).sqrt()).detach()
    bias, mean, beta = conv.bias.detach(), norm.running_mean, norm.bias.detach()
    return (bias - mean) * scale + beta, {
        "the convolution's own bias goes through BatchNorm as well, so it is scaled": (
            bias - mean * scale + beta
        ),
        "the mean is forgotten: it is subtracted before anything is scaled": bias * scale + beta,
        "the mean is subtracted before anything is scaled, so it is scaled, too": (
            bias * scale - mean + beta
        ),
        "BatchNorm's own bias is forgotten": (bias - mean) * scale,
        "BatchNorm's own bias comes last: it is not scaled": (bias - mean + beta) * scale,
        "the convolution's own bias is forgotten": beta - mean * scale,
        "the mean is subtracted, not added": (bias + mean) * scale + beta,
    }


def _compare(
    name: str, actual: torch.Tensor, right: torch.Tensor, mistakes: dict[str, torch.Tensor]
) -> None:
    """Assert that a tensor is right; if it has the value of a known mistake, name that."""
    if torch.allclose(actual, right, rtol=1e-5, atol=1e-5):
        return
    for words, value in mistakes.items():
        assert not torch.allclose(actual, value, rtol=1e-5, atol=1e-5), f"the {name}: {words}"
    difference = float((actual - right).abs().max())
    raise AssertionError(f"the {name} differs by up to {difference:.2g} from what it should be")


def check_folded_network(fold: Fold) -> str:
    """Check that a network without BatchNorms gives the same scores."""
    torch.manual_seed(1)
    network = nn.Sequential(
        nn.Conv2d(3, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
        nn.Conv2d(8, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(64, 5),
    )  # fmt: skip
    images = 2 + 3 * torch.randn(16, 3, 8, 8)
    with torch.no_grad():
        network(images)  # in training mode, so that statistics are not 0 and 1
        scores = network.eval()(images)
        folded = fold_batchnorms(network, fold)
        error = float((folded(images) - scores).abs().max())
    assert count_batchnorms(folded) == 0 and error < 1e-4, (
        f"a network's scores differ by {error:.1g}"
    )
    return f"a network of two convolutions has no BatchNorm left; its scores differ by {error:.0e}"


def check_int8(to_int8: ToInt8) -> str:
    """Check that each number becomes the nearest step, and a too large one the last."""
    numbers, scale = torch.linspace(-100, 100, 2001), torch.tensor(0.5)
    steps = _int8_steps(to_int8, numbers, scale, 127)
    inside = numbers.abs() < 127 * scale
    assert not torch.equal(steps[inside], (numbers * scale).round()[inside]), (
        "it multiplies by the scale: divide to get the number of steps"
    )
    assert not torch.equal(steps[inside], (numbers / scale).trunc()[inside]), (
        f"{numbers[inside][-1] - 0.1:.1f} / 0.5 is not cut off but rounded: .round() before .to()"
    )
    large = steps[numbers > 127 * scale]
    assert (large == 127).all(), (
        f"a number above 63.5 with steps of 0.5 becomes {int(large[large != 127][0])}: it should "
        f"be 127, the largest. Clamp before .to(torch.int8), which wraps around"
    )
    small = steps[numbers < -127 * scale]
    assert (small == -127).all(), (
        f"a number below −63.5 with steps of 0.5 becomes {int(small[small != -127][0])}: it "
        f"should be −127, so that 0 stays in the middle"
    )
    wrong = int((steps != (numbers / scale).round().clamp(-127, 127)).sum())
    assert not wrong, f"{wrong} of {len(numbers)} numbers become a different step than the nearest"
    return "2,001 numbers became the nearest step, and too large ones the last"


def _int8_steps(
    to_int8: ToInt8, numbers: torch.Tensor, scale: torch.Tensor, most: int
) -> torch.Tensor:
    steps = to_int8(numbers, scale, most)
    assert isinstance(steps, torch.Tensor) and steps.dtype == torch.int8, (
        f"it returns {getattr(steps, 'dtype', type(steps).__name__)}; expected int8"
    )
    assert steps.shape == numbers.shape, f"{tuple(numbers.shape)} became {tuple(steps.shape)}"
    return steps.float()


def check_scales_and_bits(to_int8: ToInt8) -> str:
    """Check that half a step is lost at most, with a scale per channel and with fewer bits."""
    torch.manual_seed(0)
    weight = torch.randn(6, 4, 3, 3) * 10.0 ** torch.arange(-2, 4).reshape(6, 1, 1, 1)
    for most in (127, 7):
        scale = scale_of(weight, most, per_channel=True)
        largest = int(_int8_steps(to_int8, 9 * weight, scale, most).abs().max())
        assert largest <= most, (
            f"with most={most} it gives {largest}: clamp to most, whatever that is"
        )
        steps = _int8_steps(to_int8, weight, scale, most)
        error = ((steps * scale - weight).abs() / scale).max()
        assert error <= 0.5 + 1e-4, (
            f"{error:.2f} of a step is lost: the nearest is half a step away"
        )
    return "with a scale for each channel, and with 8 and 4 bits, at most half a step is lost"
