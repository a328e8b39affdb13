"""The bottleneck test of the lab: its solution and the checks of a learner's version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.lab import digits, results

SHARE = 0.9  # of its own speed: then a part limits training
Test = Callable[[float, float, float], Any]
# Measured images/s: loader, network, both together. The first four are the recorded H200's, with
# no workers, 4, 8 and 16; in the fifth, loader and network share the cores of a CPU.
RATES = (
    (508.0, 4677.0, 458.4),
    (2032.0, 4677.0, 1927.6),
    (4064.0, 4677.0, 3337.3),
    (8127.0, 4677.0, 4543.3),
    (300.0, 200.0, 120.0),
    (4800.0, 4900.0, 4700.0),  # both are near: loading cannot win more than the network has left
    (400.0, 1000.0, 360.0),  # exactly 90 %
    (1000.0, 400.0, 360.0),
    (1000.0, 950.0, 600.0),
)
REASONS = {
    "network": "training reaches 90 % of the network's own speed, so better loading wins little",
    "loader": "training is as fast as images arrive, and the network could train more",
    "overlap": "training is slower than the loader and slower than the network",
}


def find_bottleneck(loader: float, network: float, together: float) -> tuple[str, float]:
    """Return what limits training, and the images/s that better loading could reach.

    Args:
        loader: images/s that arrive if nothing is trained.
        network: images/s that the network trains if no step waits, on synthetic images.
        together: images/s that training from files reaches.

    Returns:
        "network", "loader" or "overlap" (neither reaches its own speed).
    """
    if together >= SHARE * network:
        return "network", network
    if together >= SHARE * loader:
        return "loader", network
    return "overlap", min(loader, network)


def check_answers(test: Test) -> str:
    """Check limit and speed for rates of the recorded H200, of a CPU, and at the borders."""
    for rates in RATES:
        _check_answer(test, *rates)
    return "right for the recorded H200 with 0 to 16 workers, and for a CPU"


def check_scale(test: Test) -> str:
    """Check that only the ratios of the rates matter."""
    for rates in RATES:
        for factor in (0.01, 100.0):
            _check_answer(test, *(factor * rate for rate in rates))
    return "a machine that is faster or slower in all three rates has the same limit"


def _check_answer(test: Test, loader: float, network: float, together: float) -> None:
    limit, speed = find_bottleneck(loader, network, together)
    case = ", ".join(
        f"{name} {digits(rate)}"
        for name, rate in (("loader", loader), ("network", network), ("together", together))
    )
    answer = results.call(test, loader, network, together)
    assert isinstance(answer, tuple | list) and len(answer) == 2, (
        f"{case} images/s: it returns {answer!r:.100}: expected a pair, a limit and images/s"
    )
    assert answer[0] in REASONS, (
        f'{case} images/s: {answer[0]!r:.100}: expected "network", "loader" or "overlap"'
    )
    assert answer[0] == limit, (
        f"{case} images/s: {answer[0]!r}, expected {limit!r}: {REASONS[limit]}"
    )
    results.compare(
        f"{case} images/s, limit {limit}: the speed that better loading could reach",
        results.numbers(answer[1], "speed")[0],
        speed,
        {together: "that is today's speed", loader: "more workers could load more"},
        rule="the network's own speed is the most; if the overlap is to blame, the slower part's",
    )
