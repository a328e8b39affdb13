"""Lab 4.2: its checks, and the runs that machines record for it."""

from course.days.lab import Lab, chosen
from course.days.sharded.checks import CHECKS
from course.days.sharded.runs import RECORDINGS

LAB = Lab(
    number="4.2",
    notebook="day4_2_fsdp",
    title="one network, shared out",
    minutes=75,
    quiz="day4_2",
    checks=chosen(CHECKS, *CHECKS),
    recordings=RECORDINGS,
    jobs="12, of 18 runs, most of 2 processes, three of 4",
    prepare="nothing",
    stuck="the optimizer is made after sharding; all ranks gather, and one writes",
)
