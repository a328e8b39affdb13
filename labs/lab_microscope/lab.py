"""Lab M: its function checks, and what the course shows about it."""

from __future__ import annotations

from course.checks.lab import Function, FunctionCheck, Lab


def _names() -> FunctionCheck:
    from labs.lab_microscope import solutions, verify

    examples, counted = verify.check_examples, verify.check_counted_kernels
    return FunctionCheck(solutions.uses_tensor_cores, examples, counted)


def _load() -> FunctionCheck:
    from labs.lab_microscope import solutions, verify

    return FunctionCheck(solutions.widest_load, verify.check_loads, verify.check_load_limit)


def _waves() -> FunctionCheck:
    from labs.lab_microscope import solutions, verify

    return FunctionCheck(solutions.waves, verify.check_waves, verify.check_units)


LAB = Lab(
    number="M",
    title="when do Tensor Cores run?",
    minutes=60,
    functions={
        "microscope.names": Function("a kernel's name shows whether Tensor Cores ran", _names),
        "microscope.load": Function("how much of a row one load may take", _load),
        "microscope.waves": Function("tiles, and waves of the multiprocessors", _waves),
    },
    prepare="nothing",
    stuck="words that are also in names of other kernels; waves rounded down",
)
