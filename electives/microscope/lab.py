"""The lab's function checks, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _padding() -> FunctionCheck:
    from electives.microscope import verify

    return FunctionCheck(verify.padded_product, verify.check_product, verify.check_rows)


def _prune() -> FunctionCheck:
    from electives.microscope import sparsity, verify

    return FunctionCheck(sparsity.prune, verify.check_pruned, verify.check_ties)


LAB = Lab(
    title="Tensor Cores under the microscope",
    minutes=60,
    functions={
        "microscope.padding": Function("a product whose rows have 16 bytes", _padding),
        "microscope.prune": Function("2:4 sparsity: two of each four weights remain", _prune),
    },
    prepare="nothing; counters of a GPU need a permission",
    stuck="which sides of a and b to pad; two of *each* four",
)
