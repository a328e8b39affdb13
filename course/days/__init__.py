"""What each lab adds to the course: its entry here, in the order in which they are taken."""

from course.days import beside, day0, day1, day2, day3, day4
from course.days.lab import Lab, Mechanism, Written

LABS: tuple[Lab, ...] = (
    *day0.LABS,
    *day1.LABS,
    *day2.LABS,
    *day3.LABS,
    *day4.LABS,
    *beside.LABS,
)


def checks() -> dict[str, Mechanism]:
    """The checks of all labs, by name."""
    return {name: check for lab in LABS for name, check in lab.checks.items()}


def written() -> dict[str, Written]:
    """What learners write in notebooks themselves, of all labs, by name."""
    return {name: each for lab in LABS for name, each in lab.written.items()}
