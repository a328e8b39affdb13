"""The lab's function check, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _correct() -> FunctionCheck:
    from electives.refinement import solvers, verify

    return FunctionCheck(solvers.correct, verify.check_accuracy, verify.check_residual)


LAB = Lab(
    title="iterative refinement, fp64 results from fp16 factors",
    minutes=45,
    functions={"refinement.correct": Function("fp64's accuracy from fp16 factors", _correct)},
    prepare="nothing",
    stuck="the residual's sign; which numbers stay in fp64",
)
