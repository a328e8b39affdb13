"""What the lab's three functions must do: each look says what it saw, or asserts what is wrong."""

from __future__ import annotations

import torch

from labs.lab_numerics.factors import ROUNDOFF, factor, matrix_of
from labs.lab_numerics.solvers import Correct, backward_error, good_enough
from labs.lab_numerics.updates import DROPPED, AddCarried, Round

FP16 = torch.float16


def adds_up(add: AddCarried) -> str:
    """Do a thousand updates of 0.0001 arrive, in fp16?"""
    total, carry = torch.tensor(1.0, dtype=FP16), torch.tensor(0.0, dtype=FP16)
    small = torch.tensor(0.0001, dtype=FP16)
    for _ in range(1000):
        total, carry = _pair(add, total, carry, small)
    assert total.dtype == carry.dtype == FP16, (
        f"it returns {total.dtype} and {carry.dtype}: both must stay fp16, or nothing is saved"
    )
    reached = total.item()
    assert reached != 1, (
        "the total is still 1: what is left is the update *minus* what arrived, (new − total), the "
        "bracket first; and it must be added to the next update"
    )
    assert abs(reached - 1.1) < 2**-9, (
        f"after 1,000 updates of 0.0001 the total is {reached:.4g}, and should be 1.1"
    )
    return f"1 + 1,000 · 0.0001 = {reached:.4f}, all in fp16"


def keeps_the_rest(add: AddCarried) -> str:
    """Is what is left exactly what rounding took away?"""
    draw = torch.Generator().manual_seed(0)
    total, carry, update = (
        (far + scale * torch.randn(1000, generator=draw)).to(FP16)
        for far, scale in ((4.0, 0.5), (0.0, 1e-4), (0.0, 1e-3))
    )
    new, left = _pair(add, total, carry, update)
    lost = total.double() + (update + carry).double() - new.double()
    wrong = (left.double() - lost).abs() > lost.abs() * 1e-3 + 1e-7
    assert not wrong.any(), (
        f"of 1,000 sums {int(wrong.sum())} keep something other than what rounding took: it is the "
        f"update with the old carry, minus (new total − old total)"
    )
    return "what is left is what rounding took away, in each of 1,000 sums"


def _pair(add: AddCarried, *numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    found = add(*numbers)
    assert isinstance(found, tuple) and len(found) == 2, (
        f"it returns {type(found).__name__}: two tensors are asked for, the total and what is left"
    )
    return found


def is_right_on_average(round_by: Round) -> str:
    """Over all 65,536 chances, is the mean of what comes out the number that went in?"""
    chance = torch.arange(2**DROPPED, dtype=torch.int32)
    for number in (1 + 2**-11, 1.0, -3.14159, 1e-6):
        exact = torch.full((2**DROPPED,), number)
        found = round_by(exact, chance)
        assert found.dtype == torch.bfloat16, f"it returns {found.dtype}, and not bf16"
        low, high = (edge(found.float()).item() for edge in (torch.min, torch.max))
        assert high - low <= 2**-6 * abs(number), (
            f"{number:.6g} becomes anything from {low:.6g} to {high:.6g}: only its two neighbours "
            f"in bf16 are allowed"
        )
        mean = found.double().mean().item()
        assert abs(mean - exact[0].double().item()) <= 2**-30 * abs(number), _on_average(
            number, mean, low, high
        )
    return "of each number tried, the mean over all 65,536 chances is the number itself"


def _on_average(number: float, mean: float, low: float, high: float) -> str:
    told = f"on average {number:.7g} becomes {mean:.7g}"
    if low == high:
        return f"{told}, whatever the chance: add the chance to the bits before they are cut"
    return f"{told}: the chance is added, and then the lower 16 bits are cut off, not rounded"


def leaves_what_fits(round_by: Round) -> str:
    """Does a number that bf16 has stay as it is, whatever the chance?"""
    chance = torch.arange(2**DROPPED, dtype=torch.int32)
    for number in (1.0, -0.5, 1 + 2**-7, 0.0):
        found = round_by(torch.full((2**DROPPED,), number), chance)
        assert (found.double() == number).all(), (
            f"{number:g} is a bf16 number and must stay, and it became {found.max().item():g}"
        )
    return "numbers that bf16 has stay as they are"


def refines(correct: Correct) -> str:
    """Is a system solved to fp64's accuracy, from factors in fp16?"""
    a, b, factors, x = _system()
    first = backward_error(a, x, b)
    for count in range(1, 16):
        before = x
        x = correct(a, b, x, factors.solve)
        assert isinstance(x, torch.Tensor), f"it returns {type(x).__name__}: x, corrected, is due"
        assert x.dtype == torch.float64, f"x has become {x.dtype}: keep it in fp64"
        error = backward_error(a, x, b)
        if error <= good_enough(len(b)):
            return f"residual {first:.0e} → {error:.0e} in {count} corrections"
        if count == 1:
            _is_nearer(before, x, a, b, factors.solve)
    raise AssertionError(
        f"after {count} corrections the residual is {error:.0e}, where {good_enough(len(b)):.0e} "
        f"is fp64's: in which precision is the residual computed?"
    )


def _is_nearer(before: torch.Tensor, x: torch.Tensor, *system) -> None:
    """Say which slip it is, where the first correction is not what the residual asks for."""
    a, b, solve = system
    asked = solve(b - a @ before)
    assert not torch.allclose(x, asked, rtol=1e-3, atol=0), (
        "it returns the correction alone: add it to x"
    )
    assert not torch.equal(x, before), "x comes back as it was"
    assert not torch.allclose(x - before, -asked, rtol=1e-3, atol=0), (
        "the correction goes the wrong way: the residual is b − A·x, and it is added"
    )


def asks_the_factors(correct: Correct) -> str:
    """Is the fp64 residual what the rough factors are asked about, once?"""
    a, b, factors, x = _system()
    asked: list[torch.Tensor] = []

    def solve(right: torch.Tensor) -> torch.Tensor:
        asked.append(right)
        return factors.solve(right)

    correct(a, b, x, solve)
    assert len(asked) == 1, f"the factors are used {len(asked)} times: once is a correction"
    residual = b - a @ x
    wrong = float((asked[0].double() - residual).abs().max() / residual.abs().max())
    assert wrong < 1e-9, (
        f"what is solved for differs from the fp64 residual by {wrong:.0e} of it: compute b − A·x "
        f"from fp64 numbers"
    )
    return "one solution by the fp16 factors a correction, for the residual in fp64"


def _system():
    a = matrix_of(100.0, 64)
    draw = torch.Generator().manual_seed(1)
    b = a @ torch.randn(64, dtype=torch.float64, generator=draw)
    factors = factor(a, "fp16")
    assert ROUNDOFF["fp16"] * 100 < 1  # so plain refinement must converge
    return a, b, factors, factors.solve(b)
