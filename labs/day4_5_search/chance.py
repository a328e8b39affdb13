"""Compute the best of several equal trainings, whose results differ only at random."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np


def best_of(values: Sequence[float], count: int) -> float:
    """Return the mean of the best of `count` values, over all ways to choose them.

    The i-th value in ascending order is the best of C(i - 1, count - 1) choices.
    """
    choices = [math.comb(place, count - 1) for place in range(len(values))]
    return float(np.average(sorted(values), weights=choices))


def check_best_of(function: Callable[[Sequence[float], int], float]) -> str:
    """Compare a learner's function with `best_of`, and describe the result in words."""
    values = [0.50, 0.51, 0.53, 0.54, 0.58, 0.52, 0.47, 0.55]
    for count in (1, 3, 8):
        expected = best_of(values, count)
        try:
            result = float(function(list(values), count))
        except Exception as error:  # whatever a learner's function may raise
            return f"not yet: it raises {type(error).__name__}: {error}"
        if abs(result - expected) < 0.005:
            continue
        cause = ""
        if count < len(values) and math.isclose(result, max(values), abs_tol=1e-9):
            cause = ": the best of all, for any number of draws"
        elif count > 1 and abs(result - np.mean(values)) < 0.005:
            cause = ": the mean of the values drawn, not of their best"
        return (
            f"not yet: the mean best of {count} is {expected:.3f}, and yours is {result:.3f}{cause}"
        )
    return "correct: the mean of the best, of 1, 3 and 8 values"
