"""The lab's function check, its recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course import rung
from course.lab import FULL_SIZE, Function, FunctionCheck, Lab, Recording


def _statistics() -> FunctionCheck:
    from electives.fast_step import verify

    return FunctionCheck(verify.statistics, verify.check_statistics, verify.check_sizes)


LAB = Lab(
    title="the fast step",
    minutes=40,
    functions={"fast_step.statistics": Function("statistics before the convolution", _statistics)},
    rungs=(("algebra", "bf16"), ("algebra", "fp16")),
    recordings=(
        Recording(
            "throughput",
            [
                rung("algebra", **FULL_SIZE),
                rung("algebra", precision="fp16", **FULL_SIZE),
            ],
        ),
    ),
    prepare="nothing",
    stuck="`G` is zᵀz, not zzᵀ; only the diagonal of W G Wᵀ is needed",
)
