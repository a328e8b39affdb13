"""Lab 2.4: its recorded runs."""

from __future__ import annotations

from course.checks.lab import Lab, Recording
from labs.day2_3_scaling import configs

LAB = Lab(
    number="2.4",
    title="communication between ranks",
    minutes=50,
    recordings=(
        Recording("communication", several=configs.traced, node=True),
        Recording("communication", several=configs.communication),
    ),
    jobs="10, of 2 processes",
    prepare="as 2.2",
    stuck="the first step has one bucket; a run that fails on purpose",
)
