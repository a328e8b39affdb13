"""The lab's recorded runs."""

from __future__ import annotations

from course.lab import Function, FunctionCheck, Lab, Recording
from labs.scaling import configs


def _average_gradients() -> FunctionCheck:
    from labs.communication import ddp, verify

    return FunctionCheck(ddp.average_gradients, verify.check_gradients, verify.check_messages)


LAB = Lab(
    title="communication between ranks",
    minutes=70,
    functions={"communication.ddp": Function("the core of DDP", _average_gradients)},
    recordings=(
        Recording("communication", several=configs.traced, node=True),
        Recording("communication", several=configs.communication),
    ),
    jobs="4, of 2 processes",
    prepare="as for data parallelism",
    stuck="the hook, and what to reset after each step",
)
