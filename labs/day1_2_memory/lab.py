"""Lab 1.2: its recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import SYNTHETIC, Lab, Recording
from course.config import rung, vary

SWEEP = SYNTHETIC | {"steps": 20, "warmup_steps": 5}
SHORT = SYNTHETIC | {"steps": 3, "warmup_steps": 1}

LAB = Lab(
    number="1.2",
    title="memory: will it fit, and which batch size?",
    minutes=45,
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
