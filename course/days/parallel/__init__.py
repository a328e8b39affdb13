"""Lab 4.3: its checks, and the runs that machines record for it."""

from course.days.lab import Lab, Recording
from course.days.parallel.piped import pipelines

LAB = Lab(
    "4.3", "day4_3_model_parallel", "one network on several devices at once", 75,
    recordings=(Recording("parallel", several=pipelines),),
)  # fmt: skip
