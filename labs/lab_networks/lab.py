"""Lab B: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import Function, FunctionCheck, Lab


def _timing() -> FunctionCheck:
    from labs.lab_networks import verify as written

    return FunctionCheck(written.seconds_a_step, written.is_right, written.waits_where_it_must)


FUNCTIONS = {
    "networks.timing": Function("a step is timed as a device computes it", _timing),
}

LAB = Lab(
    number="B",
    title="a benchmark of three networks",
    minutes=75,
    functions=FUNCTIONS,
    prepare="images with boxes and volumes, 70 MB, made on first use",
    stuck="a clock that is read while the device still computes; a speed that is the host's",
)
