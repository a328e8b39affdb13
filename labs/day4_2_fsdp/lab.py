"""Lab 4.2: checks, recorded runs, and what the course shows about the lab."""

from course.checks.lab import Lab
from labs.day4_2_fsdp.configs import RECORDINGS
from labs.day4_2_fsdp.shard_checks import CHECKS

LAB = Lab(
    number="4.2",
    title="FSDP, a network sharded over several GPUs",
    minutes=75,
    checks=CHECKS,
    recordings=RECORDINGS,
    jobs="12, of 18 runs, most of 2 processes, three of 4",
    prepare="nothing",
    stuck="the optimizer is made after sharding; all ranks gather, and one writes",
)
