"""Lab N: its function checks, and what the course shows about it."""

from __future__ import annotations

from course.checks.lab import Function, FunctionCheck, Lab


def _carry() -> FunctionCheck:
    from labs.lab_numerics import updates, verify

    return FunctionCheck(updates.add_with_carry, verify.check_sum, verify.check_carry)


def _stochastic_rounding() -> FunctionCheck:
    from labs.lab_numerics import updates, verify

    rounding = updates.round_stochastically
    return FunctionCheck(rounding, verify.check_mean, verify.check_bf16_numbers)


def _refine() -> FunctionCheck:
    from labs.lab_numerics import solvers, verify

    return FunctionCheck(solvers.correct, verify.check_accuracy, verify.check_residual)


LAB = Lab(
    number="N",
    title="half precision for science",
    minutes=50,
    functions={
        "numerics.carry": Function("small updates arrive, in 16 bits", _carry),
        "numerics.rounding": Function("rounding is right on average", _stochastic_rounding),
        "numerics.refine": Function("fp64's accuracy from factors in fp16", _refine),
    },
    prepare="nothing",
    stuck="the carry's sign; bits that are rounded instead of cut",
)
