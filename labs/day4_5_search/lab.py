"""Lab 4.5: recorded runs, and what the course shows about the lab."""

from course.checks.lab import Lab, Recording

LAB = Lab(
    number="4.5",
    title="hyperparameter search without wasting a cluster",
    minutes=60,
    recordings=(Recording("search"),),
    jobs="16, one after another; on Slurm three arrays",
    prepare="the crops, 240 MB, as 3.3",
    stuck="the mean of the best, not the best of the means",
)
