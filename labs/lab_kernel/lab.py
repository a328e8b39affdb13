"""Lab K: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import Function, FunctionCheck, Lab


def _add() -> FunctionCheck:
    from labs.lab_kernel import solutions as given
    from labs.lab_kernel import verify as written

    return FunctionCheck(given.add, written.adds, written.adds_once)


def _softmax() -> FunctionCheck:
    from labs.lab_kernel import solutions as given
    from labs.lab_kernel import verify as written

    return FunctionCheck(given.softmax, written.is_softmax, written.reads_rows_once)


def _norm_relu() -> FunctionCheck:
    from labs.lab_kernel import solutions as given
    from labs.lab_kernel import verify as written

    return FunctionCheck(given.norm_relu, written.normalises, written.reads_channels_once)


def _matmul() -> FunctionCheck:
    from labs.lab_kernel import solutions as given
    from labs.lab_kernel import verify as written

    return FunctionCheck(given.matmul, written.multiplies, written.uses_dot)


FUNCTIONS = {
    "kernel.add": Function("a kernel adds, and stays inside", _add),
    "kernel.softmax": Function("a row is read once", _softmax),
    "kernel.norm": Function("two operations in one kernel", _norm_relu),
    "kernel.matmul": Function("tiles are multiplied by Tensor Cores", _matmul),
}

LAB = Lab(
    number="K",
    title="a first GPU kernel",
    minutes=60,
    functions=FUNCTIONS,
    prepare="Linux: Triton is not to be had elsewhere",
    stuck="what stands beyond a row; tables of places from rows and channels",
)
