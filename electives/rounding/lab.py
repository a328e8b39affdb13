"""The lab's function checks, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _carry() -> FunctionCheck:
    from electives.rounding import updates, verify

    return FunctionCheck(updates.add_with_carry, verify.check_sum, verify.check_carry)


def _stochastic_rounding() -> FunctionCheck:
    from electives.rounding import updates, verify

    rounding = updates.round_stochastically
    return FunctionCheck(rounding, verify.check_mean, verify.check_bf16_numbers)


LAB = Lab(
    title="rounding, master weights and fp8",
    minutes=50,
    functions={
        "rounding.carry": Function("small updates are kept in 16 bits", _carry),
        "rounding.stochastic": Function("rounding is right on average", _stochastic_rounding),
    },
    prepare="nothing",
    stuck="the sign of the carry; bits that are rounded instead of cut off",
)
