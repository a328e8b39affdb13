"""Checks of the lab's function: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

import torch

from course.lab import results
from electives.refinement.solvers import (
    Correct,
    Factors,
    Solve,
    backward_error,
    factor,
    random_matrix,
    target_error,
)


def check_accuracy(correct: Correct) -> str:
    """Check that a system is solved to fp64's accuracy, from factors in fp16."""
    a, b, factors, x = _system()
    first, arguments = backward_error(a, x, b), []
    for count in range(1, 16):
        before, arguments = x.clone(), []
        residual = b - a @ before
        x = _correct(correct, a, b, x, _recording_solve(factors, arguments))
        assert isinstance(x, torch.Tensor), f"it returns {type(x).__name__}; expected the new x"
        assert x.dtype == torch.float64, f"x has become {x.dtype}: keep it in fp64"
        error = backward_error(a, x, b)
        if error <= target_error(len(b)):
            plural = "s" if count > 1 else ""
            return f"residual {first:.0e} → {error:.0e} in {count} correction{plural}"
        if count == 1:
            correction = factors.solve(residual)
            assert not torch.allclose(x, correction, rtol=1e-3, atol=0), (
                "it returns only the correction: add it to x"
            )
            assert not torch.equal(x, before), "x is returned unchanged"
            assert not torch.allclose(x - before, -correction, rtol=1e-3, atol=0), (
                "the correction goes the wrong way: the residual is b − A·x, and it is added"
            )
    _assert_one_call(arguments)
    far = (arguments[0].double().abs() - residual.abs()).abs().max() > 0.05 * b.abs().max()
    assert not far, "the argument of solve() is not the residual b − A·x"
    raise AssertionError(
        f"after {count} corrections the residual is {error:.0e}, and fp64 reaches "
        f"{target_error(len(b)):.0e}: in which precision do you compute the residual?"
    )


def check_residual(correct: Correct) -> str:
    """Check that the rough factors are used once, for the fp64 residual."""
    for size in (64, 96):
        a, b, factors, x = _system(size)
        arguments: list[torch.Tensor] = []
        residual, before = b - a @ x, x.clone()
        result = _correct(correct, a, b, x, _recording_solve(factors, arguments))
        _assert_one_call(arguments)
        # A·x − b is right, too, if the solution is then subtracted.
        difference = min(
            float((sign * arguments[0].double() - residual).abs().max() / residual.abs().max())
            for sign in (1, -1)
        )
        assert difference < 1e-9, (
            f"the argument of solve() differs from the fp64 residual by {difference:.0e}, "
            f"relatively: compute b − A·x from fp64 numbers"
        )
        assert torch.allclose(result, before + factors.solve(residual), rtol=1e-9), (
            f"for a system of {size} equations, the result is not x plus the correction"
        )
    return "each correction solves once with the fp16 factors, for the fp64 residual"


def _correct(
    correct: Correct, a: torch.Tensor, b: torch.Tensor, x: torch.Tensor, solve: Solve
) -> torch.Tensor:
    """Call the function, which may change x only: the next correction needs A and b again."""
    return results.call(lambda a, b: correct(a, b, x, solve), a, b)


def _recording_solve(factors: Factors, arguments: list[torch.Tensor]) -> Solve:
    """Return the factors' solve(), which adds its argument to the list."""

    def solve(right: torch.Tensor) -> torch.Tensor:
        assert right.shape == factors.order.shape, (
            f"solve() got a tensor of shape {(*right.shape,)}; expected a vector of "
            f"{len(factors.order)} numbers: `@` multiplies a matrix by a vector, `*` does not"
        )
        arguments.append(right.clone())
        return factors.solve(right)

    return solve


def _assert_one_call(arguments: list[torch.Tensor]) -> None:
    count = len(arguments)
    assert count, "solve() is not called: it turns the residual into the correction"
    assert count == 1, f"solve() is called {count} times: a correction needs it once"


def _system(size: int = 64):
    a = random_matrix(100.0, size)
    generator = torch.Generator().manual_seed(1)
    b = a @ torch.randn(size, dtype=torch.float64, generator=generator)
    factors = factor(a, "fp16")
    return a, b, factors, factors.solve(b)
