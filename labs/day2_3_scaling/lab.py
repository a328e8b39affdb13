"""Lab 2.3: its recorded runs."""

from __future__ import annotations

from course.checks.lab import Lab, Recording
from labs.day2_3_scaling import configs

LAB = Lab(
    number="2.3",
    title="scaling to many GPUs",
    minutes=30,
    recordings=(
        Recording("scaling", several=configs.fastest, node=True),
        Recording("scaling", several=configs.larger),
        Recording("feeding", several=configs.from_files, node=True),
    ),
    jobs="none, or 2 where there are two GPUs",
    prepare="nothing: it shows recorded H200s",
    stuck="a slow script scales well; the curves to 2,048 GPUs are a model, not a forecast",
)
