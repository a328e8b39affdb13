"""Lab N: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import Function, FunctionCheck, Lab


def _carry() -> FunctionCheck:
    from labs.lab_numerics import updates
    from labs.lab_numerics import verify as written

    return FunctionCheck(updates.add_carried, written.adds_up, written.keeps_the_rest)


def _chance() -> FunctionCheck:
    from labs.lab_numerics import updates
    from labs.lab_numerics import verify as written

    return FunctionCheck(updates.by_chance, written.is_right_on_average, written.leaves_what_fits)


def _refine() -> FunctionCheck:
    from labs.lab_numerics import solvers as refined
    from labs.lab_numerics import verify as written

    return FunctionCheck(refined.correct, written.refines, written.asks_the_factors)


FUNCTIONS = {
    "numerics.carry": Function("small updates arrive, in 16 bits", _carry),
    "numerics.chance": Function("rounding is right on average", _chance),
    "numerics.refine": Function("fp64's accuracy from factors in fp16", _refine),
}

LAB = Lab(
    number="N",
    title="half precision for science",
    minutes=50,
    functions=FUNCTIONS,
    prepare="nothing",
    stuck="the carry's sign; bits that are rounded instead of cut",
)
