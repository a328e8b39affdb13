"""Checks of the lab's function: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable

AllReduce = Callable[[int, float, float, float], float]  # (p, n, alpha, beta) -> seconds


def all_reduce_s(p: int, n: float, alpha: float, beta: float) -> float:
    """Return the seconds of an all-reduce of n bytes over a ring of p ranks.

    Args:
        alpha: seconds of a message of any size.
        beta: bytes per second.
    """
    return 2 * (p - 1) * (alpha + n / p / beta)


def check_terms(function: AllReduce) -> str:
    """Check the price of messages and that of bytes separately."""
    for p in (2, 4, 2048):
        messages = function(p, 0, 1.0, 1.0)
        assert _is_near(messages, 2 * (p - 1)), (
            f"{p} ranks, 0 bytes, alpha=1 s: {messages:g} s, expected {2 * (p - 1)}: each rank "
            f"sends 2(p − 1) messages, one after another, and each takes alpha"
        )
        sent = function(p, 1e9, 0.0, 1e9)
        assert _is_near(sent, 2 * (p - 1) / p), (
            f"{p} ranks, 1 GB at 1 GB/s, alpha=0: {sent:g} s, expected {2 * (p - 1) / p:g}: each "
            f"of the 2(p − 1) messages has n/p bytes"
        )
    return "2(p − 1) messages of alpha, and 2(p − 1)/p times the bytes"


def check_one_rank(function: AllReduce) -> str:
    """Check that one rank sends nothing, and that both terms add up."""
    assert function(1, 1e9, 1.0, 1.0) == 0, "one rank sends nothing: expected 0 s"
    seconds, expected = function(4, 100e6, 20e-6, 5e9), all_reduce_s(4, 100e6, 20e-6, 5e9)
    assert _is_near(seconds, expected), (
        f"4 ranks, 100 MB, 20 µs, 5 GB/s: {seconds:g} s, expected {expected:g}: add both terms"
    )
    return "one rank sends nothing; 100 MB over 4 ranks at 5 GB/s take 30 ms"


def _is_near(value: float, expected: float) -> bool:
    return abs(value - expected) <= 1e-9 * expected
