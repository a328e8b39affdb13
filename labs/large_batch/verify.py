"""Checks of the lab's noise scale and trust ratio: their values, and what they describe."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from course import rung
from course.lab import results
from course.training import optimizers

NoiseScale = Callable[[int, float, int, float], float]
TrustRatio = Callable[..., torch.Tensor | float]

COEFFICIENT = 0.001  # of the course's LARS
DECAY = 5e-4
RATE = 10.0


def noise_scale(part: int, part_square: float, batch: int, batch_square: float) -> float:
    """Return the images per batch whose noise is as large as the gradient; inf without a gradient.

    McCandlish et al. 2018, arXiv:1812.06162, appendix A.1.

    Args:
        part_square: the mean square of gradients of `part` images; batch_square: of `batch` images.
    """
    noise = (part_square - batch_square) / (1 / part - 1 / batch)
    gradient = (batch * batch_square - part * part_square) / (batch - part)
    return noise / gradient if gradient > 0 else math.inf


def check_scale(function: NoiseScale) -> str:
    """Check the scale of squares that are computed from a gradient and its noise."""
    for part, batch, gradient, noise in (
        (1, 4, 9.0, 4.0),
        (32, 256, 0.02, 14.0),
        (8, 64, 3.0, 0.5),
    ):
        squares = gradient + noise / part, gradient + noise / batch
        value = results.call(function, part, squares[0], batch, squares[1])
        (scale,) = results.numbers(value, "images")
        rest = squares[0] - squares[1]
        mistakes = {
            gradient / noise: "the scale is noise ÷ gradient",
            rest / (squares[1] - rest / batch): "the squares differ by noise · (1/part − 1/batch)",
            noise / squares[1]: "the batch's square still contains noise ÷ batch",
            noise / squares[0]: "the part's square still contains noise ÷ part",
        }
        case = f"{part=}, part_square={squares[0]:.4g}, {batch=}, batch_square={squares[1]:.4g}"
        results.compare(case, scale, noise / gradient, mistakes, rule="solve the two equations")
    return "right for three pairs of squares"


def check_estimate(function: NoiseScale) -> str:
    """Check the scale of random gradients whose mean and noise are known."""
    generator = torch.Generator().manual_seed(0)
    images = 0.3 + torch.randn(256 * 64, 50, generator=generator)  # a gradient of each image
    squares = [
        float(images.unflatten(0, (-1, size)).mean(1).square().sum(1).mean()) for size in (32, 256)
    ]
    scale = float(function(32, squares[0], 256, squares[1]))
    expected = 1 / 0.3**2
    assert abs(scale / expected - 1) < 0.2, f"{scale:.3g} images, expected about {expected:.3g}"
    return f"{scale:.1f} images for random gradients with a scale of {expected:.1f}"


def trust_ratio(
    weight: torch.Tensor,
    grad: torch.Tensor,
    weight_decay: float,
    coefficient: float,
    eps: float = 1e-8,
) -> torch.Tensor | float:
    """Return LARS's factor for one layer's update; 1 if the weights or the gradient are zero.

    You et al. 2017, arXiv:1708.03888, equation 6.
    """
    weight_norm, grad_norm = weight.norm(), grad.norm()
    if weight_norm == 0 or grad_norm == 0:
        return 1.0
    return coefficient * weight_norm / (grad_norm + weight_decay * weight_norm + eps)


def check_ratio(function: TrustRatio) -> str:
    """Check the ratio of a filter, and those of zeros."""
    generator = torch.Generator().manual_seed(0)
    weight, grad = torch.randn(2, 4, 3, 2, 2, generator=generator)
    grad = 0.3 * grad
    w, g = float(weight.norm()), float(grad.norm())
    plain = {
        g / w: "the ratio is upside down: long weights should make the update longer",
        1.0: "divide the norm of the weights by that of the gradient",
        float(weight.abs().sum() / grad.abs().sum()): "a norm is the root of the sum of squares",
        (w / g) ** 2: "these are squares of norms: a norm is the root of the sum of squares",
    }
    decayed = {
        w / g: "weight decay is forgotten: it makes the update longer, so it is in the denominator",
        w / (g + 2): "weight decay is multiplied by the norm of the weights",
        w / float((grad + 2 * weight).norm()): "add the norms, not the tensors",
    }
    _check_value(function, weight, grad, 0.0, 1e-8, plain)
    _check_value(function, weight, grad, 2.0, 1e-8, decayed)
    root = weight.numel() ** 0.5
    padded = {
        w / g: "eps is added to the denominator",
        w / g + 0.5: "eps belongs in the denominator, `/ (… + eps)`",
        w / (g + root): "a norm is the root of the sum of squares, not of their mean",
    }
    _check_value(function, weight, grad, 0.0, 1.0, padded)
    zeros = torch.zeros_like(weight)
    _check_value(function, 3 * weight, 1e-14 * grad, 0.0, 1e-8, {}, coefficient=0.02)
    _check_value(function, 1e-14 * weight[1:], grad[1:], 0.01, 0.25, {}, coefficient=0.7)
    _check_value(function, 5 * weight[:1], grad[:1], 0.3, 0.6, {}, coefficient=0.3)
    for case, pair in {"zero weights": (zeros, grad), "a zero gradient": (weight, zeros)}.items():
        ratio = _call(function, *pair, 2.0, 0.01)
        assert ratio == 1, (
            f"{case}: {ratio:.4g}, expected 1: with zero weights the ratio would be 0, and the "
            f"layer could never move; a zero gradient has no length to correct"
        )
    return "right for a filter with and without weight decay, and 1 if a norm is zero"


def _check_value(
    function: TrustRatio,
    weight: torch.Tensor,
    grad: torch.Tensor,
    weight_decay: float,
    eps: float,
    mistakes: dict[float, str],
    coefficient: float = 2.0,  # so that ratios are above 1
) -> None:
    """Compare one ratio with the solution's; `mistakes` explains wrong ratios, without factor."""
    ratio = _call(function, weight, grad, weight_decay, coefficient, eps)
    expected = float(trust_ratio(weight, grad, weight_decay, coefficient, eps))
    causes = {expected / coefficient: "multiply by the coefficient"}
    causes |= {1.0: "only a norm of exactly 0 makes it 1"}
    causes |= {coefficient * wrong: cause for wrong, cause in mistakes.items()}
    case = (
        f"‖weight‖={float(weight.norm()):.3g}, ‖grad‖={float(grad.norm()):.3g}, "
        f"{weight_decay=:g}, {coefficient=:g}, {eps=:g}"
    )
    rule = "coefficient · ‖weight‖ ÷ (‖grad‖ + weight_decay · ‖weight‖ + eps)"
    results.compare(case, ratio, expected, causes, rule=rule)


def _call(function: TrustRatio, weight: torch.Tensor, grad: torch.Tensor, *args: float) -> float:
    ratio = torch.as_tensor(results.call(function, weight, grad, *args), dtype=torch.float32)
    assert ratio.numel() == 1, (
        f"it returns {ratio.numel()} numbers of shape {(*ratio.shape,)}, expected one per layer: "
        f"a norm of all its weights"
    )
    return float(ratio)


def check_update(function: TrustRatio) -> str:
    """Check that updates with this ratio are those of the course's LARS optimizer."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"filters": (8, 3, 3, 3), "matrix": (16, 8), "bias": (16,), "zero bias": (16,)}
    weights = {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    weights["zero bias"].zero_()
    weights["filters"] = weights["filters"].to(memory_format=torch.channels_last)
    gradients = [0.1 * torch.randn(shape, generator=generator) for shape in shapes.values()]
    copies = [weight.clone().requires_grad_() for weight in weights.values()]
    for copy, grad in zip(copies, gradients):
        copy.grad = grad
    settings = {"optimizer": "lars", "lr": RATE, "weight_decay": DECAY}
    optimizers.create(copies, rung("channels_last", **settings)).step()
    for (name, weight), grad, copy in zip(weights.items(), gradients, copies):
        ratio = _call(function, weight, grad, DECAY, COEFFICIENT)
        new = weight - RATE * ratio * (grad + DECAY * weight)
        difference = float((new - copy.detach()).norm() / (copy.detach() - weight).norm())
        assert difference < 1e-3, (
            f"{name}: the update differs from the course's LARS by {difference:.1%} of its length"
        )
    return f"the first update of {len(shapes)} tensors is that of the course's LARS"
