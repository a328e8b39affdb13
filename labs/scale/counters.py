"""Energy from the readings of a counter that changes only now and then, measured or simulated."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pandas as pd

Readings = list[tuple[float, float]]  # seconds, and the joules so far
Energy = Callable[[Readings, float, float], "float | None"]
J_PER_KWH = 3.6e6
PERIOD_S = 0.11  # simulated counters change this often; those of GPUs about as often
STEP_S = 0.02  # between two readings


def energy_kwh(readings: Readings, host: float = 1.0, pue: float = 1.0) -> float | None:
    """Return the energy that a building uses from a GPU's first reading to its last, in kWh.

    The mean power between the counter's first change and its last counts for the full time, because
    a reading is only up to date when the counter has just changed.

    Args:
        host: the node's power over its GPUs'.
        pue: the building's power over its computers'.

    Returns:
        None if the counter changed fewer than two times: the time was too short.
    """
    changes = [new for old, new in pairwise(readings) if new[1] != old[1]]
    if len(changes) < 2:
        return None
    (begin, first_j), (end, last_j) = changes[0], changes[-1]
    watts = (last_j - first_j) / (end - begin)
    seconds = readings[-1][0] - readings[0][0]
    return watts * seconds * host * pue / J_PER_KWH


def energy_between_ends(readings: Readings) -> float:
    """Return the kWh between the first reading and the last, which may both be old."""
    return (readings[-1][1] - readings[0][1]) / J_PER_KWH


def simulated_readings(watts: float, seconds: float, *, start_s: float = 0.0) -> Readings:
    """Read a simulated counter of constant power every STEP_S.

    Args:
        start_s: when the first reading happens; the counter changes at multiples of PERIOD_S.
    """
    times = start_s + STEP_S * np.arange(round(seconds / STEP_S) + 1)
    joules = 5000 + watts * PERIOD_S * np.floor(times / PERIOD_S + 1e-9)
    return list(zip(times.tolist(), joules.tolist()))


def power_errors(energy: Energy) -> pd.DataFrame:
    """Return the largest error of two methods, for measurements that start at different moments.

    Columns: seconds, `between the ends` and `between changes` (relative errors; NaN if a
    measurement gives no result).
    """
    rows = []
    for duration in (0.06, 0.16, 0.36, 0.76, 1.56, 3.16, 6.36):
        errors = []
        for start_s in np.linspace(0, PERIOD_S, 24, endpoint=False):
            readings = simulated_readings(500, duration, start_s=float(start_s))
            exact = 500 * duration / J_PER_KWH
            found = (energy_between_ends(readings), energy(readings, 1.0, 1.0))
            errors.append([np.nan if kwh is None else abs(kwh / exact - 1) for kwh in found])
        ends, changes = np.array(errors).max(axis=0)
        rows.append({"seconds": duration, "between the ends": ends, "between changes": changes})
    return pd.DataFrame(rows)
