"""The check of its function, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _full_training() -> FunctionCheck:
    from labs.scale import full_training

    return FunctionCheck(
        full_training.full_training, full_training.check_hours, full_training.check_energy
    )


def _energy() -> FunctionCheck:
    from labs.scale import counters, verify_energy

    return FunctionCheck(counters.energy_kwh, verify_energy.check_energy, verify_energy.check_short)


LAB = Lab(
    title="scale and energy",
    minutes=50,
    functions={
        "scale.full_training": Function("what a full training costs", _full_training),
        "tracking.energy": Function("energy from a counter", _energy),
    },
    prepare="nothing: it shows published and recorded numbers",
    stuck="a record has the speed of all GPUs together, but the watts of one; both ends of a "
    "measurement are old readings",
)
