"""Checks of the lab's two functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from functools import partial

import torch

from course.lab import results
from electives.rounding.updates import DROPPED_BITS, Add, Round, round_stochastically

FP16 = torch.float16


def check_sum(add: Add) -> str:
    """Check that a thousand updates of 0.0001 change an fp16 number as in fp32."""
    total, carry = torch.tensor(1.0, dtype=FP16), torch.tensor(0.0, dtype=FP16)
    for count in range(1000):
        pair = results.call(add, total, carry, torch.tensor(0.0001, dtype=FP16))
        assert isinstance(pair, tuple | list) and len(pair) == 2, (
            f"it returns {type(pair).__name__}: expected two tensors, the total and what is left"
        )
        total, carry = pair
        assert total.dtype == carry.dtype == FP16, (
            f"it returns {total.dtype} and {carry.dtype}: both must stay fp16, or no memory is "
            f"saved"
        )
        if count == 0:
            _check_one_sum(add)
    assert total != 1, "the total is still 1: add the carry to `update`, before the total grows"
    assert abs(total.item() - 1.1) < 2**-9, (
        f"after 1,000 updates of 0.0001 the total is {total:.4g}; expected 1.1"
    )
    return f"1 + 1,000 · 0.0001 = {total:.4f}, all in fp16"


def _check_one_sum(add: Add) -> None:
    """Check a sum to which nothing arrives: 1 + 0.00015 with a carry of 0.00005, all in fp16."""
    one, carry, update = (torch.tensor(number, dtype=FP16) for number in (1.0, 5e-5, 1.5e-4))
    new, left = (number.item() for number in add(one, carry, update))
    expected = (update + carry).item()
    case = "for a total of 1, a carry of 0.00005 and an update of 0.00015"
    assert new == 1, (
        f"{case}, the new total is {new:g}; expected 1: `update` must become the update plus the "
        f"carry"
    )
    mistakes = {
        0.0: "nothing arrived in the total, so subtract (new − total) from the update. Compute "
        "this bracket first, because each subtraction rounds",
        -expected: "the sign is wrong: it is the update *minus* what arrived, (new − total)",
        update.item(): "the carry is missing, so add it to the update first",
        (carry - update).item(): "the carry is what did *not* arrive, so add it to the update",
    }
    rule = "it is the update with the carry, minus (new − total)"
    rule = next((hint for wrong, hint in mistakes.items() if abs(left - wrong) < 1e-6), rule)
    assert abs(left - expected) < 1e-6, (
        f"{case}, `left` is {left:.2g}; expected {expected:.2g}: {rule}"
    )


def check_carry(add: Add) -> str:
    """Check that the new carry is exactly what rounding removed."""
    generator = torch.Generator().manual_seed(0)
    for dtype, shape in ((FP16, (1000,)), (FP16, (20, 30)), (torch.bfloat16, (7, 11))):
        total, carry, update = (
            (mean + scale * torch.randn(shape, generator=generator)).to(dtype)
            for mean, scale in ((4.0, 0.5), (0.0, 1e-4), (0.0, 1e-3))
        )
        for tensor in (result := results.call(add, total, carry, update)):
            assert tensor.dtype == dtype and tensor.shape == total.shape, (
                f"for numbers of shape {shape} in {dtype}, it returns {tensor.dtype} of shape "
                f"{(*tensor.shape,)}: keep the type and the shape"
            )
        new, remainder = result
        lost = total.double() + (update + carry).double() - new.double()
        eps = torch.finfo(dtype).eps  # computing in fp32, which is right, too, rounds elsewhere
        wrong = (remainder.double() - lost).abs() > lost.abs() * 1e-3 + eps * update.abs() + 1e-6
        assert not wrong.any() and torch.allclose(new, total + (update + carry), eps, 0), (
            f"{int(wrong.sum())} of {total.numel():,} sums in {dtype} return a carry that differs "
            f"from what rounding removed: the update with the old carry, minus (new total − old "
            f"total), all in that type"
        )
    return "the carry is exactly what rounding removed, in each of 1,000 sums, in bf16, too"


def check_mean(round_to_bf16: Round) -> str:
    """Check that the mean over all 65,536 random numbers is the number before rounding."""
    random_bits = torch.arange(2**DROPPED_BITS, dtype=torch.int32)
    for number in (1 + 2**-11, 1.0, -3.14159, 1e-6):
        exact = torch.full((2**DROPPED_BITS,), number)
        without = round_to_bf16(exact.clone(), torch.zeros_like(random_bits))
        # Its view of the bits shares the number's memory, so it may change the number.
        rounded = results.call(partial(round_to_bf16, exact.clone()), random_bits)
        assert rounded.dtype == torch.bfloat16, f"it returns {rounded.dtype}; expected bf16"
        assert not rounded.isnan().any() and rounded.float().abs().max() > abs(number) / 2, (
            f"{number:.6g} becomes {rounded[0].item():g}: shift the bits 16 places to the right, "
            f"and then back to the left"
        )
        assert (without == without[0]).all(), (
            "the result is random even if all random_bits are 0: add the argument random_bits"
        )
        low, high = rounded.float().min().item(), rounded.float().max().item()
        assert high - low <= 2**-6 * abs(number), (
            f"{number:.6g} becomes anything from {low:.6g} to {high:.6g}: expected one of its two "
            f"neighbours in bf16"
        )
        mean = rounded.double().mean().item()
        rule = (
            " with every random number: add it to the bits before you cut them off"
            if low == high
            else ": add the random number, then cut off the lower 16 bits without rounding them"
        )
        assert abs(mean - exact[0].double().item()) <= 2**-30 * abs(number), (
            f"on average {number:.7g} becomes {mean:.7g}{rule}"
        )
    return "for each number tried, the mean over all 65,536 random numbers is the number itself"


def check_bf16_numbers(round_to_bf16: Round) -> str:
    """Check that no random number changes a bf16 number."""
    random_bits = torch.arange(2**DROPPED_BITS, dtype=torch.int32)
    for number in (1.0, -0.5, 1 + 2**-7, 0.0):
        rounded = round_to_bf16(torch.full((2**DROPPED_BITS,), number), random_bits)
        assert (rounded.double() == number).all(), (
            f"{number:g} is a bf16 number and must not change, but it became "
            f"{rounded.max().item():g}"
        )
    numbers = torch.tensor([[1.5, -70_000.0, 3e-5], [0.1, 1e9, -0.7]])
    numbers = numbers.bfloat16().float() * (1 + 2**-8)  # halfway to the next, or further
    random_bits = torch.tensor([[60_000, 9, 40_000], [1, 50_000, 0]], dtype=torch.int32)
    expected = round_stochastically(numbers, random_bits)
    result = round_to_bf16(numbers.clone(), random_bits)
    assert result.shape == expected.shape and torch.equal(result, expected), (
        f"{numbers.tolist()} with random bits {random_bits.tolist()} become {result.tolist()}, "
        f"expected {expected.tolist()}: each number has its own bits and its own random number"
    )
    return "bf16 numbers do not change"
