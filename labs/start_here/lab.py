"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Lab

LAB = Lab(
    title="start here",
    minutes=65,
    file_checks={"start_here.batch_script": "a batch script without mistakes"},
    jobs="5",
    prepare="the site's own names for partitions, disks and modules",
    stuck="the login node is not where the job runs; options after the first command are ignored",
)
