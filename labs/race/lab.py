"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from course.lab import Lab

LAB = Lab(
    title="train to an accuracy, in the least time",
    minutes=60,
    jobs="3 an entry on track quick, 4 on the others, one after another",
    prepare="the crops, 230 MB (`course data --as crops`); a shared folder for the board",
    stuck="a mean above the target, but not significantly; weights saved twice",
)
