"""Lab 4.5: its checks, and the runs that machines record for it."""

from course.days.lab import Lab, chosen
from course.days.practice.checks import CHECKS
from course.days.practice.runs import RECORDINGS

LAB = Lab(
    number="4.5",
    notebook="day4_5_practice",
    title="stopped, repeated, found again",
    minutes=75,
    quiz="day4_5",
    checks=chosen(CHECKS, *CHECKS),
    recordings=RECORDINGS,
    jobs="12, one of 2 processes",
    prepare="nothing; with a Slurm, a job of it is put back into the queue",
    stuck="random numbers are taken last; the handler only notes; ask all ranks before one saves",
)
