"""The lab's function check, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _audit() -> FunctionCheck:
    from electives.networks import verify

    return FunctionCheck(verify.find_problems, verify.check_rows, verify.check_several)


LAB = Lab(
    title="a benchmark of three networks",
    minutes=50,
    functions={"networks.audit": Function("a published benchmark is audited", _audit)},
    prepare="nothing",
    stuck="the error of a mean falls with the root of the iterations; a speed that is the host's",
)
