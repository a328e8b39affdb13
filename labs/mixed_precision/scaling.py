"""Loss scaling by hand: the solution of `precision.scaled_step`, and its checks."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product

import torch

ScaledStep = Callable[..., tuple[float, int]]
SCALE = 2.0**10  # a power of two: dividing by it rounds nothing


def scaled_step(
    optimizer: torch.optim.Optimizer, scale: float, good_steps: int, interval: int = 2000
) -> tuple[float, int]:
    """Divide the gradients by the scale and update the weights, unless a gradient overflowed.

    Args:
        good_steps: updates in a row since the scale last changed.
        interval: after this many, the scale doubles.

    Returns:
        The scale and `good_steps` for the next step. An overflow halves the scale.
    """
    gradients = [weight.grad for group in optimizer.param_groups for weight in group["params"]]
    for gradient in gradients:
        gradient /= scale
    if not all(gradient.isfinite().all() for gradient in gradients):
        return scale / 2, 0
    optimizer.step()
    good_steps += 1
    return (2 * scale, 0) if good_steps == interval else (scale, good_steps)


def check_updates(function: ScaledStep) -> str:
    """Check that good steps update as without a scale, and that the scale doubles in time."""
    weights, optimizer = _weights()
    expected, plain = _weights()
    state, states = (SCALE, 0), []
    for step in range(4):
        for weight, twin in zip(weights, expected):
            twin.grad = torch.full_like(twin, 0.25 + step)
            weight.grad = twin.grad * state[0]
        plain.step()
        state = _call(function, optimizer, *state)
        for weight, twin in zip(weights, expected):
            assert torch.equal(weight, twin), (
                f"step {step + 1}, scale {SCALE:g}: a weight is {weight.flatten()[0].item():g}, "
                f"expected {twin.flatten()[0].item():g}. Divide every gradient by the scale in "
                f"place (`gradient /= scale`), and call optimizer.step() once"
            )
        states.append(state)
    expected_states = [(SCALE, 1), (SCALE, 2), (2 * SCALE, 0), (2 * SCALE, 1)]
    for number, (state, right) in enumerate(zip(states, expected_states), 1):
        assert state == right, (
            f"after {number} good steps with interval=3, your function returned {state}, expected "
            f"{right}: count each update, and after `interval` of them double the scale and count "
            f"from 0"
        )
    return "weights are those of training without a scale, and the scale doubles after `interval`"


def check_overflow(function: ScaledStep) -> str:
    """Check that infinite and NaN gradients leave weights and momentum as they are."""
    for value, place in product((math.inf, -math.inf, math.nan), (-1, 0)):
        weights, optimizer = _weights()
        before = [weight.detach().clone() for weight in weights]
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        weights[place].grad[0] = value  # elements of one tensor, the last or the first
        state = _call(function, optimizer, SCALE, 2)
        unchanged = all(map(torch.equal, weights, before)) and not optimizer.state
        assert unchanged, (
            f"one gradient has an element {value}, and the weights or the momentum changed: test "
            f"all gradients with isfinite(), which is False for infinity and NaN, before the update"
        )
        assert state == (SCALE / 2, 0), (
            f"after an element {value}, your function returned {state}, expected "
            f"{(SCALE / 2, 0)}: half the scale, and no good step"
        )
    return "a step with an infinite or NaN gradient changes nothing and halves the scale"


def _weights() -> tuple[list[torch.nn.Parameter], torch.optim.Optimizer]:
    """Return weights in two groups, and SGD with momentum."""
    weights = [torch.nn.Parameter(torch.ones(shape)) for shape in ((2, 3), (4,), (5,))]
    groups = [{"params": weights[:2]}, {"params": weights[2:]}]
    return weights, torch.optim.SGD(groups, lr=0.5, momentum=0.5)


def _call(
    function: ScaledStep, optimizer: torch.optim.Optimizer, scale: float, good_steps: int
) -> tuple[float, int]:
    state = function(optimizer, scale, good_steps, interval=3)
    assert isinstance(state, tuple) and len(state) == 2, (
        f"your function returned {state!r:.60}, expected two numbers: `return scale, good_steps`"
    )
    return state
