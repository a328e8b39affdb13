"""The lab's recorded runs."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab, Recording
from labs.scaling import configs


def _exposed() -> FunctionCheck:
    from labs.scaling import verify

    return FunctionCheck(verify.exposed_s, verify.check_one_bucket, verify.check_queue)


def _choose_gpus() -> FunctionCheck:
    from labs.scaling import verify

    return FunctionCheck(verify.choose_gpus, verify.check_choice, verify.check_too_late)


LAB = Lab(
    title="scaling to many GPUs",
    minutes=75,
    functions={
        "scaling.exposed": Function("messages that outlast backward", _exposed),
        "scaling.gpus": Function("the cheapest number of GPUs", _choose_gpus),
    },
    recordings=(
        Recording("scaling", several=configs.fastest, node=True),
        Recording("scaling", several=configs.larger),
        Recording("strong scaling", several=configs.fixed_batch),
        Recording("feeding", several=configs.from_files, node=True),
        Recording("network", several=configs.network),
    ),
    jobs="1, of 2 processes; 2 more where there are two GPUs",
    prepare="nothing: it shows recorded GPUs",
    stuck="two conditions for a bucket's start; GPU-seconds are not seconds",
)
