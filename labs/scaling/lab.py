"""The lab's recorded runs."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab, Recording
from labs.scaling import configs


def _all_reduce() -> FunctionCheck:
    from labs.scaling import verify

    return FunctionCheck(verify.all_reduce_s, verify.check_terms, verify.check_one_rank)


LAB = Lab(
    title="scaling to many GPUs",
    minutes=45,
    functions={"scaling.all_reduce": Function("the time of an all-reduce", _all_reduce)},
    recordings=(
        Recording("scaling", several=configs.fastest, node=True),
        Recording("scaling", several=configs.larger),
        Recording("feeding", several=configs.from_files, node=True),
        Recording("network", several=configs.network),
    ),
    jobs="1, of 2 processes; 2 more where there are two GPUs",
    prepare="nothing: it shows recorded GPUs",
    stuck="a slow script scales well; the curves to 2,048 GPUs are a model, not a forecast",
)
