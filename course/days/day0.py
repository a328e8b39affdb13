"""Day 0: from a machine that one does not know to a job that one has launched and ended."""

from course.days.lab import Lab

LABS = (
    Lab(
        "0", "day0_start_here", "start here", 40, "day0_1", jobs="5",
        prepare="the site's own names for partitions and disks",
        stuck="the login node is not where the job runs",
    ),
)  # fmt: skip
