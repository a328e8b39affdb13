"""Lab 4.5: checks, recorded runs, and what the course shows about the lab."""

from course.checks.lab import Lab
from labs.day4_5_practice.measurements import RECORDINGS
from labs.day4_5_practice.restart_checks import CHECKS

LAB = Lab(
    number="4.5",
    title="checkpoints, reproducibility and tracking",
    minutes=75,
    checks=CHECKS,
    recordings=RECORDINGS,
    jobs="12, one of 2 processes",
    prepare="nothing; on Slurm, a job is put back into the queue",
    stuck="restore random states last; the handler only sets a flag; ask all ranks before saving",
)
