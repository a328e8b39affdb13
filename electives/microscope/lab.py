"""The lab's function checks, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab


def _names() -> FunctionCheck:
    from electives.microscope import kernel_names, verify

    examples, counted = verify.check_examples, verify.check_counted_kernels
    return FunctionCheck(kernel_names.uses_tensor_cores, examples, counted)


def _prune() -> FunctionCheck:
    from electives.microscope import sparsity, verify

    return FunctionCheck(sparsity.prune, verify.check_pruned, verify.check_ties)


LAB = Lab(
    title="Tensor Cores under the microscope",
    minutes=70,
    functions={
        "microscope.names": Function("a kernel's name shows whether Tensor Cores ran", _names),
        "microscope.prune": Function("2:4 sparsity: two of each four weights remain", _prune),
    },
    prepare="nothing; counters of a GPU need a permission",
    stuck="words that are also in names of other kernels; two of *each* four",
)
