"""The lab's audit of a benchmark's rows, and its checks: rows with planted problems."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

TOLERANCE = 0.02


class Row(NamedTuple):
    """One row of a published benchmark, and what is known about its network and its GPU."""

    network: str
    gpu: str
    precision: str
    batch: int
    iterations: int  # timed ones
    seconds: float  # of all timed iterations
    images_per_s: float
    fp32_images_per_s: float  # of the same GPU and network
    largest_ratio: float  # between this precision and fp32, by the GPU's data sheet
    weights_gb: float  # weights, gradients and momentum
    image_gb: float  # activations that one image keeps for the backward pass
    gpu_gb: float
    spread: float  # standard deviation of a single step's time, relative to the mean


RULES = {
    "speed": "batch × iterations ÷ seconds must be within 2 % of images_per_s",
    "memory": "weights_gb + batch × image_gb must be at most gpu_gb",
    "noise": "spread ÷ √iterations must be at most 0.02",
    "ratio": "images_per_s ÷ fp32_images_per_s must be at most largest_ratio",
}
Audit = Callable[[Row], list[str]]
GOOD = Row("a network", "a GPU", "fp16", 100, 400, 80.0, 500.0, 200.0, 8.0, 2.0, 0.1, 16.0, 0.1)


def find_problems(row: Row) -> list[str]:
    """Return those of RULES that a row has."""
    problems = []
    if abs(row.batch * row.iterations / row.seconds / row.images_per_s - 1) > TOLERANCE:
        problems.append("speed")
    if row.weights_gb + row.batch * row.image_gb > row.gpu_gb:
        problems.append("memory")
    if row.spread / row.iterations**0.5 > TOLERANCE:
        problems.append("noise")
    if row.images_per_s / row.fp32_images_per_s > row.largest_ratio:
        problems.append("ratio")
    return problems


def _found(audit: Audit, row: Row) -> set[str]:
    problems = audit(row)
    assert isinstance(problems, list | tuple), (
        f"it returns {type(problems).__name__}; expected a list of names, which may be empty"
    )
    assert len({*problems}) == len(problems), f"it returns a name twice: {[*problems]}"
    unknown = [str(name) for name in problems if name not in RULES]
    assert not unknown, f"{unknown[0]!r} is unknown: the names are {', '.join(RULES)}"
    return set(problems)


def _expect(audit: Audit, name: str, is_problem: bool, hint: str, **changes: float) -> None:
    """Check one name for the good row with changes."""
    found = _found(audit, GOOD._replace(**changes))
    words = ", ".join(f"{field}={value:.4g}" for field, value in changes.items()) or "a good row"
    verb = "doesn't report" if is_problem else "reports"
    assert (name in found) == is_problem, f"{words}: it {verb} {name!r}: {hint}"


def check_rows(audit: Audit) -> str:
    """Check rows with one planted problem each, and good rows near each limit."""
    together = "batch × iterations ÷ seconds must be close to images_per_s"
    _expect(audit, "speed", False, together)
    found = ["speed" in _found(audit, GOOD._replace(iterations=count)) for count in (200, 800)]
    assert any(found), f"a speed twice as high or half as high isn't reported: {together}"
    assert all(found), (
        f"a stated speed that is too {'low' if found[0] else 'high'} isn't reported: differences "
        f"count in both directions, so take the absolute value"
    )
    hint = "published numbers are rounded, so allow a relative difference of 2 %"
    _expect(audit, "speed", False, hint, images_per_s=505.0)
    _expect(audit, "memory", False, "2 GB + 100 × 0.1 GB fit in 16 GB")
    _expect(audit, "memory", False, "at most: a GPU may be full", image_gb=0.125, gpu_gb=14.5)
    hint = "compare weights_gb + batch × image_gb with gpu_gb"
    _expect(audit, "memory", True, hint, image_gb=0.2)
    hint = "the weights need memory, too: add weights_gb"
    _expect(audit, "memory", True, hint, weights_gb=7.0)
    hint = "the weights are stored once, not for each image"
    _expect(audit, "memory", False, hint, weights_gb=5.0)
    hint = "4 iterations are few: compare spread ÷ √iterations with 0.02"
    _expect(audit, "noise", True, hint, iterations=4, seconds=0.8)
    hint = "the mean of many steps is more exact than one step: divide by √iterations"
    _expect(audit, "noise", False, hint)
    hint = "the error of a mean falls with the *root* of the number of iterations"
    _expect(audit, "noise", True, hint, iterations=9, seconds=1.8)
    hint = "if single steps differ much, more iterations are needed: use spread"
    _expect(audit, "noise", True, hint, spread=0.5)
    hint = "images_per_s ÷ fp32_images_per_s is higher than largest_ratio"
    _expect(audit, "ratio", True, hint, fp32_images_per_s=50.0)
    hint = "500 ÷ 200 is below the largest ratio, 8"
    _expect(audit, "ratio", False, hint)
    _expect(audit, "ratio", False, "8 is at most the largest ratio, 8", fp32_images_per_s=62.5)
    return "each planted problem is reported, and no good row"


def check_several(audit: Audit) -> str:
    """Check a row with all problems, and the names of an empty list."""
    bad = GOOD._replace(iterations=4, image_gb=0.2, fp32_images_per_s=50.0)
    found = _found(audit, bad)
    missing = [name for name in RULES if name not in found]
    assert not missing, (
        f"a row with four problems: {', '.join(missing)} is missing. Don't return after the first"
    )
    extra = _found(audit, GOOD)
    assert not extra, f"a good row after a bad one: {extra} is reported. Is the list a new one?"
    for changes in _drawn_changes():
        expected = find_problems(GOOD._replace(**changes))
        for name, rule in RULES.items():
            _expect(audit, name, name in expected, rule, **changes)
    return "a row with four problems has all four names; the next row starts with an empty list"


def _drawn_changes(count: int = 40) -> Iterator[dict[str, float]]:
    """Yield random numbers of rows, each far enough from its limit."""
    rng = random.Random(0)

    def draw_near(limit: float) -> float:
        return limit * rng.choice((rng.uniform(0.5, 0.9), rng.uniform(1.1, 2)))

    for _ in range(count):
        batch, iterations, speed = rng.randint(8, 500), rng.randint(20, 900), rng.uniform(50, 5000)
        gpu_gb, ratio = rng.uniform(8, 96), rng.uniform(2, 16)
        weights_gb = rng.uniform(0.1, 0.4) * gpu_gb
        yield dict(
            batch=batch,
            iterations=iterations,
            seconds=batch * iterations / speed * rng.choice((0.8, 0.97, 0.985, 1.015, 1.03, 1.2)),
            images_per_s=speed,
            fp32_images_per_s=speed / draw_near(ratio),
            largest_ratio=ratio,
            weights_gb=weights_gb,
            image_gb=(draw_near(gpu_gb) - weights_gb) / batch,
            gpu_gb=gpu_gb,
            spread=draw_near(TOLERANCE) * iterations**0.5,
        )
