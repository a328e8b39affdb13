"""Lab 3.4: checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.checks.lab import Lab, Recording
from course.config import rung
from labs.day1_1_gpu.lab import ON_CPU
from labs.day3_4_compile.compile_checks import COMPILER_CHECKS as CHECKS
from labs.day3_4_compile.compile_checks import modes

LAB = Lab(
    number="3.4",
    title="let the compiler write the kernels",
    minutes=75,
    checks=CHECKS,
    rungs=(("fused", "bf16"), ("compile", "bf16")),
    recordings=(
        Recording("throughput", [rung(name, **ON_CPU) for name in ("fused", "compile")]),
        Recording("compiler", [*modes()]),
    ),
    jobs="3, of 4 runs",
    prepare="a C++ compiler on the nodes (`module load gcc`); "
    "`TORCHINDUCTOR_CACHE_DIR` on a disk that all of them see, one folder per user",
    stuck="what `torch.compile` gives back must be kept; DDP goes around it",
)
