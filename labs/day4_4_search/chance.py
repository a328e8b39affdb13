"""What luck brings: the best of several equal trainings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pandas as pd


def best_of(values: Sequence[float], count: int) -> float:
    """The mean of the best of `count` values, over all ways to choose so many of them.

    Of the values in their order, the i-th is the best of C(i - 1, count - 1) choices.

    Raises:
        ValueError: more than there are, or none.
    """
    if not 1 <= count <= len(values):
        raise ValueError(f"the best of {count}: there are {len(values)} values")
    ways = [math.comb(place, count - 1) for place in range(len(values))]
    return sum(way * value for way, value in zip(ways, sorted(values))) / sum(ways)


def best_by_chance(values: Sequence[float]) -> pd.DataFrame:
    """How the best grows with the number of equal trainings: trials, best, gain over the mean."""
    mean = float(np.mean(values))
    rows = [(count, best_of(values, count)) for count in range(1, len(values) + 1)]
    return pd.DataFrame(
        [(count, best, best - mean) for count, best in rows], columns=["trials", "best", "gain"]
    )


def check_best_of(own: Callable[[Sequence[float], int], float]) -> str:
    """Is it a function as `best_of`, to 0.005? In words, with what is wrong where something is."""
    values = [0.50, 0.51, 0.53, 0.54, 0.58, 0.52, 0.47, 0.55]
    try:
        found = {count: float(own(list(values), count)) for count in (1, 3, 8)}
    except Exception as error:  # whatever a learner's function may raise
        return f"not yet: it raises {type(error).__name__}: {error}"
    for count, got in found.items():
        due = best_of(values, count)
        if not abs(got - due) < 0.005:
            said = f"the best of {count} is {due:.3f} in the mean, and yours says {got:.3f}"
            return f"not yet: {said}{_why(values, count, got)}"
    return "correct: the mean of the best, of 1, 3 and 8 values"


def _why(values: Sequence[float], count: int, got: float) -> str:
    if count < len(values) and math.isclose(got, max(values), abs_tol=1e-9):
        return ": the best of all, however many are drawn"
    if count > 1 and abs(got - np.mean(values)) < 0.005:
        return ": the mean of the values drawn, not of their best"
    return ""
