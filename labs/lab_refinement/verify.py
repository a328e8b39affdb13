"""Checks of the lab's function: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

import torch

from labs.lab_refinement.solvers import (
    Correct,
    backward_error,
    factor,
    random_matrix,
    target_error,
)


def check_accuracy(correct: Correct) -> str:
    """Check that a system is solved to fp64's accuracy, from factors in fp16."""
    a, b, factors, x = _system()
    first = backward_error(a, x, b)
    for count in range(1, 16):
        before = x
        x = correct(a, b, x, factors.solve)
        assert isinstance(x, torch.Tensor), f"it returns {type(x).__name__}; expected the new x"
        assert x.dtype == torch.float64, f"x has become {x.dtype}: keep it in fp64"
        error = backward_error(a, x, b)
        if error <= target_error(len(b)):
            return f"residual {first:.0e} → {error:.0e} in {count} corrections"
        if count == 1:
            correction = factors.solve(b - a @ before)
            assert not torch.allclose(x, correction, rtol=1e-3, atol=0), (
                "it returns only the correction: add it to x"
            )
            assert not torch.equal(x, before), "x is returned unchanged"
            assert not torch.allclose(x - before, -correction, rtol=1e-3, atol=0), (
                "the correction goes the wrong way: the residual is b − A·x, and it is added"
            )
    raise AssertionError(
        f"after {count} corrections the residual is {error:.0e}, and fp64 reaches "
        f"{target_error(len(b)):.0e}: in which precision do you compute the residual?"
    )


def check_residual(correct: Correct) -> str:
    """Check that the rough factors are used once, for the fp64 residual."""
    a, b, factors, x = _system()
    arguments: list[torch.Tensor] = []

    def solve(right: torch.Tensor) -> torch.Tensor:
        arguments.append(right)
        return factors.solve(right)

    correct(a, b, x, solve)
    count = len(arguments)
    assert count == 1, f"solve() is called {count} times: a correction needs it once"
    residual = b - a @ x
    difference = float((arguments[0].double() - residual).abs().max() / residual.abs().max())
    assert difference < 1e-9, (
        f"the argument of solve() differs from the fp64 residual by {difference:.0e}, relatively: "
        f"compute b − A·x from fp64 numbers"
    )
    return "each correction solves once with the fp16 factors, for the fp64 residual"


def _system():
    a = random_matrix(100.0, 64)
    generator = torch.Generator().manual_seed(1)
    b = a @ torch.randn(64, dtype=torch.float64, generator=generator)
    factors = factor(a, "fp16")
    return a, b, factors, factors.solve(b)
