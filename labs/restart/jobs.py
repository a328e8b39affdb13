"""How many jobs a long training needs, and the checks of a function that counts them."""

from __future__ import annotations

import math
from collections.abc import Callable

from course.lab import Function, FunctionCheck, results

CountJobs = Callable[[float, float, float], int]


def count_jobs(hours: float, limit_min: float, overhead_min: float) -> int:
    """Return the number of jobs for a number of hours of training.

    Args:
        limit_min: minutes after which a job is ended.
        overhead_min: minutes of each job in which it does not train.

    Raises:
        ValueError: the overhead takes the whole job.
    """
    if overhead_min >= limit_min:
        raise ValueError(f"no job of {limit_min} minutes trains: {overhead_min} are overhead")
    return math.ceil(60 * hours / (limit_min - overhead_min))


def check_counts(function: CountJobs) -> str:
    """Check the number of jobs, from one job to many."""
    for hours, limit_min, overhead_min in ((2.6, 20, 5), (1, 63, 3), (80, 1200, 30)):
        minutes = 60 * hours
        count = count_jobs(hours, limit_min, overhead_min)
        mistakes = {
            math.ceil(minutes / limit_min): "each job loses its overhead",
            math.ceil((minutes + overhead_min) / limit_min): "every job has the overhead, not one",
            math.floor(minutes / (limit_min - overhead_min)): "the rest needs a job, too: round up",
        }
        (value,) = results.numbers(function(hours, limit_min, overhead_min), "jobs")
        case = f"{hours} hours in jobs of {limit_min} minutes with {overhead_min} of overhead"
        results.compare(case, value, count, mistakes)
    return "each job trains for its limit without the overhead, and the last one may be short"


def check_endless(function: CountJobs) -> str:
    """Check that a chain of jobs which would never end is refused."""
    for limit_min in (3, 2):
        try:
            result = function(1, limit_min, 3)
        except ValueError:
            continue
        raise AssertionError(
            f"jobs of {limit_min} minutes with 3 of overhead: it returns {result}, but they never "
            f"train. Expected a ValueError"
        )
    return "jobs that only start and save are refused"


CHECKS = FunctionCheck(count_jobs, check_counts, check_endless)
FUNCTIONS = {"restart.jobs": Function("the jobs of a long run", lambda: CHECKS)}
