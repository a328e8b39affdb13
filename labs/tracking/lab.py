"""The lab's check, and what the course shows about the lab."""

from course.lab import Function, FunctionCheck, Lab


def _energy() -> FunctionCheck:
    from labs.tracking import counters, verify

    return FunctionCheck(counters.energy_kwh, verify.check_energy, verify.check_short)


LAB = Lab(
    title="tracking runs and measuring energy",
    minutes=60,
    functions={"tracking.energy": Function("energy from a counter", _energy)},
    jobs="3, one after another",
    prepare="the crops, 240 MB, as 3.3",
    stuck="both ends are old readings; the power between changes counts for the full time",
)
