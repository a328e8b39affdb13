"""Lab M: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import Function, FunctionCheck, Lab


def _names() -> FunctionCheck:
    from labs.lab_microscope import solutions as given
    from labs.lab_microscope import verify as written

    return FunctionCheck(given.uses_tensor_cores, written.knows_names, written.knows_others)


def _load() -> FunctionCheck:
    from labs.lab_microscope import solutions as given
    from labs.lab_microscope import verify as written

    return FunctionCheck(given.widest_load, written.knows_loads, written.loads_at_most_16)


def _waves() -> FunctionCheck:
    from labs.lab_microscope import solutions as given
    from labs.lab_microscope import verify as written

    return FunctionCheck(given.waves, written.counts_waves, written.waves_of_units)


FUNCTIONS = {
    "microscope.names": Function("a kernel's name tells whether Tensor Cores ran", _names),
    "microscope.load": Function("how much of a row one load may take", _load),
    "microscope.waves": Function("tiles, and turns of the multiprocessors", _waves),
}

LAB = Lab(
    number="M",
    title="when do Tensor Cores run?",
    minutes=60,
    functions=FUNCTIONS,
    prepare="nothing",
    stuck="words that also stand in names of other kernels; waves rounded down",
)
