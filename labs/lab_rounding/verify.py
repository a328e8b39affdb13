"""Checks of the lab's two functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

import torch

from labs.lab_rounding.updates import DROPPED_BITS, Add, Round

FP16 = torch.float16


def check_sum(add: Add) -> str:
    """Check that a thousand updates of 0.0001 change an fp16 number as in fp32."""
    total, carry = torch.tensor(1.0, dtype=FP16), torch.tensor(0.0, dtype=FP16)
    for _ in range(1000):
        pair = add(total, carry, torch.tensor(0.0001, dtype=FP16))
        assert isinstance(pair, tuple) and len(pair) == 2, (
            f"it returns {type(pair).__name__}: expected two tensors, the total and what is left"
        )
        total, carry = pair
    assert total.dtype == carry.dtype == FP16, (
        f"it returns {total.dtype} and {carry.dtype}: both must stay fp16, or no memory is saved"
    )
    assert total != 1, (
        "the total is still 1: add the carry to the update, and return what is left, which is the "
        "update *minus* what arrived, (new − total). Compute the bracket first"
    )
    assert abs(total.item() - 1.1) < 2**-9, (
        f"after 1,000 updates of 0.0001 the total is {total:.4g}; expected 1.1"
    )
    return f"1 + 1,000 · 0.0001 = {total:.4f}, all in fp16"


def check_carry(add: Add) -> str:
    """Check that the new carry is exactly what rounding removed."""
    generator = torch.Generator().manual_seed(0)
    total, carry, update = (
        (mean + scale * torch.randn(1000, generator=generator)).to(FP16)
        for mean, scale in ((4.0, 0.5), (0.0, 1e-4), (0.0, 1e-3))
    )
    new, remainder = add(total, carry, update)
    lost = total.double() + (update + carry).double() - new.double()
    wrong = (remainder.double() - lost).abs() > lost.abs() * 1e-3 + 1e-7
    assert not wrong.any(), (
        f"{int(wrong.sum())} of 1,000 sums return a carry that differs from what rounding removed: "
        f"the update with the old carry, minus (new total − old total)"
    )
    return "the carry is exactly what rounding removed, in each of 1,000 sums"


def check_mean(round_to_bf16: Round) -> str:
    """Check that the mean over all 65,536 random numbers is the number before rounding."""
    random_bits = torch.arange(2**DROPPED_BITS, dtype=torch.int32)
    for number in (1 + 2**-11, 1.0, -3.14159, 1e-6):
        exact = torch.full((2**DROPPED_BITS,), number)
        rounded = round_to_bf16(exact, random_bits)
        assert rounded.dtype == torch.bfloat16, f"it returns {rounded.dtype}; expected bf16"
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
    return "bf16 numbers do not change"
