"""Lab 4.3: checks, recorded runs, and what the course shows about the lab."""

from course.checks.lab import Lab
from labs.day4_3_model_parallel import stage_checks, tensor_checks
from labs.day4_3_model_parallel.configs import RECORDINGS

CHECKS = tensor_checks.CHECKS | stage_checks.CHECKS

LAB = Lab(
    number="4.3",
    title="tensor and pipeline parallelism",
    minutes=90,
    checks=CHECKS,
    recordings=RECORDINGS,
    jobs="16, most of 2 processes, two of 4",
    prepare="nothing",
    stuck="a tensor-parallel group gets the same images; the last bias is added once; "
    "backward has sums too",
)
