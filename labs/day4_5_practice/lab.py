"""Lab 4.5: checks, recorded runs, and what the course shows about the lab."""

from course.checks.lab import Lab
from labs.day4_5_practice.recordings import RECORDINGS
from labs.day4_5_practice.restart_checks import CHECKS

LAB = Lab(
    number="4.5",
    title="stopped, repeated, found again",
    minutes=75,
    checks=CHECKS,
    recordings=RECORDINGS,
    jobs="12, one of 2 processes",
    prepare="nothing; with a Slurm, a job of it is put back into the queue",
    stuck="random numbers are taken last; the handler only notes; ask all ranks before one saves",
)
