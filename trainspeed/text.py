"""Format numbers for people."""

from __future__ import annotations

import math


def digits(value: float) -> str:
    """Format a number for people: three significant digits, and no exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if 0 < abs(value) < 1e-4:
        return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}".rstrip("0")
    return f"{value:.3g}"


def flop_rate(flop_per_s: float) -> str:
    """Format FLOP/s in the unit that fits."""
    power, unit = (1e12, "TFLOP/s") if flop_per_s >= 1e12 else (1e9, "GFLOP/s")
    return f"{digits(flop_per_s / power)} {unit}"
