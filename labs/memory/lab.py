"""The lab's check, its recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course import rung, vary
from course.lab import SYNTHETIC, Function, FunctionCheck, Lab, Recording

SWEEP = SYNTHETIC | {"steps": 20, "warmup_steps": 5}
SHORT = SYNTHETIC | {"steps": 3, "warmup_steps": 1}


def _activation_gib() -> FunctionCheck:
    from labs.memory import volumes

    return FunctionCheck(volumes.activation_gib, volumes.check_sizes, volumes.check_growth)


LAB = Lab(
    title="memory and batch size",
    minutes=75,
    functions={"memory.activations": Function("activation memory from shapes", _activation_gib)},
    recordings=(
        Recording(
            "batch sizes",
            [
                rung(name, **SWEEP, batch_size=size)
                for name in ("channels_last", "amp", "device")
                for size in (64, 128, 512, 1024, 2048)
            ],
        ),
        Recording("notebook", vary(rung("device", **SHORT), batch_size=[32, 64, 256, 1024, 2048])),
    ),
    jobs="5 (4 at once)",
    prepare="nothing",
    stuck="the largest batch of the sweep fails on purpose",
)
