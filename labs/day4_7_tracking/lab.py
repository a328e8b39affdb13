"""Lab 4.7: what the course shows about the lab."""

from course.checks.lab import Lab

LAB = Lab(
    number="4.7",
    title="tracking runs and measuring energy",
    minutes=60,
    jobs="none",
    prepare="nothing",
    stuck="readings that change only now and then; the last run's idle time",
)
