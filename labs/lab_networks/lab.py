"""Lab B: its function check, and what the course shows about it."""

from __future__ import annotations

from course.checks.lab import Function, FunctionCheck, Lab


def _timing() -> FunctionCheck:
    from labs.lab_networks import verify

    return FunctionCheck(verify.seconds_per_step, verify.check_seconds, verify.check_waits)


LAB = Lab(
    number="B",
    title="a benchmark of three networks",
    minutes=75,
    functions={"networks.timing": Function("a step is timed as a device computes it", _timing)},
    prepare="nothing",
    stuck="a clock that is read while the device still computes; a speed that is the host's",
)
