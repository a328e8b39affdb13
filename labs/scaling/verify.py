"""Checks of the lab's function: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable

from course.lab import results

AllReduce = Callable[[int, float, float, float], float]  # (p, n, alpha, beta) -> seconds


def all_reduce_s(p: int, n: float, alpha: float, beta: float) -> float:
    """Return the seconds of an all-reduce of n bytes over a ring of p ranks.

    Args:
        alpha: seconds of a message of any size.
        beta: bytes per second.
    """
    return 2 * (p - 1) * (alpha + n / p / beta)


def check_terms(function: AllReduce) -> str:
    """Check the price of messages and that of bytes separately, then both."""
    each = "each rank sends 2(p − 1) messages, one after another, and each takes alpha"
    for p in (2, 3, 4, 2048):
        _check(function, (p, 0, 1.0, 1.0), each)
        _check(function, (p, 1e9, 0.0, 1e9), "each of the 2(p − 1) messages has n/p bytes")
    for case in ((4, 100e6, 20e-6, 5e9), (7, 123_456_789, 3e-3, 2.5e8), (48, 4.4e6, 1e-4, 5e10)):
        _check(function, case, "add both terms")
    return "2(p − 1) messages of alpha, and 2(p − 1)/p times the bytes"


def check_one_rank(function: AllReduce) -> str:
    """Check that one rank sends nothing."""
    assert function(1, 1e9, 1.0, 1.0) == 0, "one rank sends nothing: expected 0 s"
    return "one rank sends nothing; 100 MB over 4 ranks at 5 GB/s take 30 ms"


def _check(function: AllReduce, case: tuple[int, float, float, float], rule: str) -> None:
    p, n, alpha, beta = case
    words = f"{p} ranks, {n / 1e6:g} MB at {beta / 1e9:g} GB/s, alpha={alpha:g} s, in seconds"
    (seconds,) = results.numbers(function(*case), "seconds")
    results.compare(words, seconds, all_reduce_s(*case), rule=rule)
