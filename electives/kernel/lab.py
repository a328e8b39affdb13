"""The lab's function checks, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _add() -> FunctionCheck:
    from electives.kernel import solutions, verify

    return FunctionCheck(solutions.add, verify.check_add, verify.check_add_traffic)


def _softmax() -> FunctionCheck:
    from electives.kernel import solutions, verify

    return FunctionCheck(solutions.softmax, verify.check_softmax, verify.check_softmax_traffic)


def _norm_relu() -> FunctionCheck:
    from electives.kernel import solutions, verify

    check_traffic = verify.check_norm_relu_traffic
    return FunctionCheck(solutions.norm_relu, verify.check_norm_relu, check_traffic)


def _matmul() -> FunctionCheck:
    from electives.kernel import solutions, verify

    return FunctionCheck(solutions.matmul, verify.check_matmul, verify.check_dot)


LAB = Lab(
    title="a first GPU kernel",
    minutes=65,
    functions={
        "kernel.add": Function("a kernel adds, and stays inside", _add),
        "kernel.softmax": Function("a row is read once", _softmax),
        "kernel.norm": Function("two operations in one kernel", _norm_relu),
        "kernel.matmul": Function("tiles are multiplied by Tensor Cores", _matmul),
    },
    prepare="Linux: Triton is unavailable elsewhere",
    stuck="values beyond the end of a row; offsets from rows and channels",
)
