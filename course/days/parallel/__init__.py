"""Lab 4.3: its checks, and the runs that machines record for it."""

from course.days.lab import Lab, Recording, chosen
from course.days.parallel import stages, tensors
from course.days.parallel.piped import pipelines
from course.days.parallel.runs import PURPOSE, RECORDINGS

CHECKS = tensors.CHECKS | stages.CHECKS

LAB = Lab(
    number="4.3",
    notebook="day4_3_model_parallel",
    title="one network on several devices",
    minutes=90,
    quiz="day4_3",
    checks=chosen(CHECKS, *CHECKS),
    recordings=(*RECORDINGS, Recording(PURPOSE, several=pipelines)),
    jobs="16, most of 2 processes, two of 4",
    prepare="nothing",
    stuck="mates see the same images; the last bias is added once; backward has sums of its own",
)
