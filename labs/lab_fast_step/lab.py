"""Lab A: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import FULL_SIZE, Function, FunctionCheck, Lab, Recording
from course.config import rung


def _statistics() -> FunctionCheck:
    from labs.lab_fast_step import verify as written

    return FunctionCheck(written.given, written.is_statistics, written.makes_no_y)


HALVES = ({}, {"precision": "fp16"})


FUNCTIONS = {
    "fast_step.statistics": Function("statistics before the convolution", _statistics),
}

LAB = Lab(
    number="A",
    title="the fast step",
    minutes=40,
    functions=FUNCTIONS,
    rungs=(("algebra", "bf16"), ("algebra", "fp16")),
    recordings=(
        Recording("throughput", [rung("algebra", **FULL_SIZE, **half) for half in HALVES]),
    ),
    prepare="nothing",
    stuck="the diagonal of W G W'; the mean's square",
)
