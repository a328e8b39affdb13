"""This lab's entry: what the course lists, checks and records for it."""

from course.lab import Exercise, Lab

EXERCISES: dict[str, Exercise] = {}

LAB = Lab(
    title="a template",
    minutes=30,
    exercises=EXERCISES,
    # Runs that `course record` records on a GPU for this lab, for example, with `rung` of `course`
    # and the rest of `course.lab`:
    # recordings=(Recording("throughput", [rung("amp", **FULL_SIZE)]),),
    jobs="2",
    prepare="nothing",
    stuck="nothing yet",
)
