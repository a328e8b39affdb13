"""Checks of the lab's functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from course.lab import results

Exposed = Callable[[Sequence[float], Sequence[float], float], float]
StepTime = Callable[[int, int], float]  # (GPUs, images on each) -> seconds
ChooseGpus = Callable[[Sequence[int], float, int, float, StepTime], int | None]
COUNTS = [1, 2, 3, 4, 8, 16, 32, 64]


def exposed_s(ready_s: Sequence[float], message_s: Sequence[float], backward_s: float) -> float:
    """Return by how many seconds messages outlast backward.

    Args:
        ready_s: when each bucket is full, in seconds since backward began.
        message_s: how long its all-reduce takes; the link sends one bucket at a time.
    """
    free = 0.0
    for ready, message in zip(ready_s, message_s):
        free = max(free, ready) + message
    return max(0.0, free - backward_s)


def choose_gpus(
    counts: Sequence[int],
    images: float,
    largest_batch: int,
    deadline_s: float,
    step_s: StepTime,
) -> int | None:
    """Return the number of GPUs that meets the deadline with the fewest GPU-seconds, or None."""
    costs = {}
    for gpus in counts:
        per_gpu = min(256, largest_batch // gpus)
        seconds = images / (gpus * per_gpu) * step_s(gpus, per_gpu)
        if seconds <= deadline_s:
            costs[gpus] = gpus * seconds
    return min(costs, key=costs.get, default=None)


def check_one_bucket(function: Exposed) -> str:
    """Check a bucket that backward hides, and one that is ready when backward ends."""
    outlast = "messages outlast backward by the end of the last one, minus backward"
    hidden = {-5.0: "hidden messages cost nothing: never below 0", 3.0: "subtract backward"}
    _compare_seconds(function, ([1.0], [2.0], 8.0), hidden, outlast)
    _compare_seconds(function, ([8.0], [2.0], 8.0), {10.0: "subtract backward"}, outlast)
    return "backward hides a bucket that is ready early, and not one that is ready at its end"


def check_queue(function: Exposed) -> str:
    """Check buckets that wait for each other, and a link that waits for a bucket."""
    queue = ([2.0, 3.0, 8.0], [4.0, 5.0, 1.0], 8.0)
    early = {1.0: "a bucket waits until the link has sent the one before"}
    _compare_seconds(function, queue, early, "the link sends one bucket at a time")
    idle = ([1.0, 5.0, 6.0], [1.0, 1.5, 3.0], 6.5)
    _compare_seconds(
        function,
        idle,
        {0.0: "a bucket can't be sent before it is ready"},
        "the link is idle until a bucket is ready",
    )
    return "buckets wait for backward and for each other"


def _compare_seconds(
    function: Exposed,
    case: tuple[list[float], list[float], float],
    mistakes: dict[float, str],
    rule: str,
) -> None:
    ready, message, backward = case
    (seconds,) = results.numbers(results.call(function, *case), "seconds")
    words = f"{ready=}, {message=}, {backward=}"
    results.compare(words, seconds, exposed_s(*case), mistakes, rule=rule)


def check_choice(function: ChooseGpus) -> str:
    """Check the cheapest number of GPUs that is fast enough, for several deadlines and batches."""

    def linear(gpus: int, per_gpu: int) -> float:
        return 0.004 + 0.0002 * per_gpu + 0.001 * (gpus > 1) + 0.0001 * gpus

    def crowded(gpus: int, per_gpu: int) -> float:  # a full memory makes the step slow
        return linear(gpus, per_gpu) * (3 if per_gpu > 200 else 1)

    def one_second(gpus: int, per_gpu: int) -> float:
        return 1.0 + 0.1 * (gpus > 1)

    images = 256 * 200_000
    cheapest = "the cheapest of those that meet the deadline has the fewest GPU-seconds"
    cases: list[tuple[float, int, StepTime, str]] = [
        (4000.0, 65_536, linear, cheapest),
        (1e9, 65_536, linear, "with time enough, one GPU is the cheapest"),
        (720.0, 2048, linear, "a batch has at most largest_batch images, shared by all GPUs"),
        (1e9, 512, crowded, "fewer GPUs aren't always cheaper: compare all GPU-seconds"),
        (200_000.0, 65_536, one_second, "a time equal to the deadline meets it"),
        (1100.0, 1024, linear, "smaller shares make more steps: images ÷ (GPUs × images on each)"),
    ]
    for deadline_s, largest, step_s, rule in cases:
        expected = choose_gpus(COUNTS, images, largest, deadline_s, step_s)
        _compare(function, (COUNTS, images, largest, deadline_s, step_s), expected, rule)
    return f"the fewest GPU-seconds, for {len(cases)} deadlines"


def check_too_late(function: ChooseGpus) -> str:
    """Check a deadline that no number of GPUs meets."""
    late = (COUNTS, 50e6, 4096, 1.0, lambda gpus, per_gpu: 0.01)
    _compare(function, late, None, "none meets the deadline: return None")
    return "None if no number of GPUs is fast enough"


def _compare(function: ChooseGpus, case: Any, expected: int | None, rule: str) -> None:
    *settings, step_s = case
    words = f"images={case[1]:g}, largest_batch={case[2]}, deadline_s={case[3]:g}"

    def checked_step_s(gpus: int, per_gpu: int) -> float:
        due = min(256, case[2] // gpus)
        assert per_gpu == due, (
            f"{words}: it calls step_s({gpus}, {per_gpu}), expected {due} images on each of {gpus} "
            f"GPUs: at most 256, and all GPUs share a batch of at most largest_batch images"
        )
        return step_s(gpus, per_gpu)

    gpus = results.call(function, *settings, checked_step_s)
    assert gpus == expected, f"{words}: {gpus!r:.60}, expected {expected}: {rule}"
