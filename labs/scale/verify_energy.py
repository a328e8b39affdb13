"""Checks of a learner's energy: a counter's changes, the time, units and factors."""

from __future__ import annotations

import numpy as np

from course.lab import results
from labs.scale.counters import (
    J_PER_KWH,
    PERIOD_S,
    Energy,
    Readings,
    energy_between_ends,
    energy_kwh,
    power_errors,
    simulated_readings,
)

TOLERANCE = 1e-3
BOTH_FACTORS = "multiply by both factors, because the building also cools the rest of the node"
FROM_ZERO = "the counter did not begin at 0: subtract"
LONG_S = 1.56  # of `power_errors`


def check_energy(function: Energy) -> str:
    """Check the energy of a long measurement, with factors, of a short one, and of none."""
    long = simulated_readings(400, 20)
    _check(function, long, 1.0, 1.0, "20 s at 400 W")
    _check(function, long, 1.25, 1.6, "20 s at 400 W")
    # Both ends fall just before a change: 0.36 s see only three changes.
    _check(function, simulated_readings(400, 0.36, start_s=0.01), 1.0, 1.0, "0.36 s at 400 W")
    # The clock of a node that has run for a day; a counter that changes twice.
    _check(function, simulated_readings(250, 0.2, start_s=86_400.08), 1.4, 1.1, "0.2 s at 250 W")
    busy = simulated_readings(600, 2.0)
    idle = [(busy[-1][0] + second, busy[-1][1] + 100 * second) for second in (0.5, 1.0, 3.0)]
    _check(function, busy + idle, 1.7, 1.2, "2 s at 600 W, and 3 s at 100 W with fewer readings")
    for count, readings in {"never": long[:3], "once": long[:8]}.items():
        try:
            result = repr(results.call(function, readings, 1.0, 1.0))
        except (ZeroDivisionError, IndexError) as error:
            result = f"nothing ({type(error).__name__})"
        assert result == "None", (
            f"the counter changed {count}: it returns {result}, expected None, because the mean "
            f"power is unknown with fewer than two changes"
        )
    return "right for long and short measurements, with both factors, and None if too short"


def _check(function: Energy, readings: Readings, host: float, pue: float, case: str) -> None:
    result, expected = results.call(function, readings, host, pue), energy_kwh(readings, host, pue)
    assert result is not None, f"{case}: it returns None, expected {expected:.3g} kWh"
    (kwh,), mistakes = results.numbers(result, "kwh"), _mistakes(readings, host, pue)
    words = f"{case}, {host=:g}, {pue=:g}, in kWh"
    results.compare(words, kwh, expected, mistakes, tolerance=TOLERANCE)


def _mistakes(readings: Readings, host: float, pue: float) -> dict[float, str]:
    """Return wrong results, each with what explains it."""
    expected, ends = energy_kwh(readings, host, pue), energy_between_ends(readings) * host * pue
    seconds = readings[-1][0] - readings[0][0]
    plain = expected / host / pue
    changes = [new for old, new in zip(readings, readings[1:]) if new[1] != old[1]]
    before = [old for old, new in zip(readings, readings[1:]) if new[1] != old[1]]
    span = changes[-1][0] - changes[0][0]
    old_power = (before[-1][1] - before[0][1]) / (before[-1][0] - before[0][0])
    rise = (changes[-1][1] - readings[0][1]) / (changes[-1][0] - readings[0][0]) * seconds
    powers = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in zip(changes, changes[1:])]
    return {
        expected * J_PER_KWH: "these are joules: divide by 3.6 million",
        expected * 1000: "these are watt-hours",
        expected / seconds: "this is the mean power: multiply it by the time",
        expected * J_PER_KWH / seconds: "this is the mean power in watts: multiply it by the time",
        readings[-1][1] / J_PER_KWH * host * pue: FROM_ZERO,
        changes[-1][1] * seconds / span / J_PER_KWH * host * pue: FROM_ZERO,
        plain: "the factors host and pue are missing",
        plain * host: "the factor pue is missing",
        plain * pue: "the factor host is missing",
        plain * (host + pue): BOTH_FACTORS,
        plain * (host + pue - 1): BOTH_FACTORS,
        ends: "both ends are old readings: use readings at which the counter has just changed",
        old_power * seconds * host * pue / J_PER_KWH: "this uses the readings before each change, "
        "which may be old: use those at which the counter has just changed",
        rise * host * pue / J_PER_KWH: "the first reading is not a change: it may be old",
        expected * readings[-1][0] / seconds: "the clock did not begin at 0: subtract",
        expected * span / seconds: "this is the energy between the first change and the last. "
        "Multiply the power by the time from the first reading to the last",
        float(np.mean(powers)) * seconds * host * pue / J_PER_KWH: "the time between two changes "
        "differs, so their powers can't simply be averaged: divide all joules by all seconds",
    }


def check_short(function: Energy) -> str:
    """Check that a second or two are enough, whenever the measurement begins."""
    table = power_errors(function).set_index("seconds")
    worst = table.loc[LONG_S, "between changes"]
    assert worst < 0.05, (
        f"measurements of {LONG_S} s are wrong by up to {worst:.0%}, depending on when they begin"
    )
    ends = table.loc[LONG_S, "between the ends"]
    return (
        f"{LONG_S} s with a counter that changes every {PERIOD_S} s: wrong by up to {worst:.1%}, "
        f"and between the ends by up to {ends:.1%}"
    )
