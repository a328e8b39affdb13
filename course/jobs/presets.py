"""What a class presets for the first cells of notebooks, in variables that start.sh sets."""

from __future__ import annotations

import os
from typing import TypeVar

from course.jobs import sites

T = TypeVar("T", bool, str)
SMALL_RUNS = {"1": True, "0": False}


def preset(parameter: str, default: T) -> T:
    """Return what your class presets for `quick` or `site`; without a class, the default.

    Raises:
        ValueError: COURSE_QUICK is neither 1 nor 0, or COURSE_SITE is not a site.
    """
    variable = f"COURSE_{parameter.upper()}"
    value = os.environ.get(variable)
    if not value:
        return default
    if parameter == "site":
        return sites.get(value).name
    if value not in SMALL_RUNS:
        raise ValueError(f"{variable}={value}: expected 1 (small runs) or 0 (full size)")
    return SMALL_RUNS[value]
