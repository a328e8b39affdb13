"""Day 0: from a machine that one does not know to a job that one has launched and ended."""

from course.days.lab import Lab

LABS = (
    Lab(
        number="0",
        notebook="day0_start_here",
        title="start here",
        minutes=40,
        quiz="day0_1",
        jobs="5",
        prepare="the site's own names for partitions and disks",
        stuck="the login node is not where the job runs",
    ),
)
