"""The search for the fewest workers: its checks, and a verdict on the number it finds."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence

from course.lab import digits, results
from labs.dataloader.loading import recorded_speeds, training_speeds

Speed = Callable[[int], float]
Search = Callable[[Speed, Sequence[int], float], int | None]
MACHINE = "nvidia-h200"
SHARE = 0.9  # of the synthetic speed
MANY = 50  # calls after which a search is stopped


def fewest_workers(speed: Speed, counts: Sequence[int], target: float) -> int | None:
    """Return the first of the ascending counts with speed(count) >= target; None if none has."""
    if speed(counts[-1]) < target:
        return None
    low, high = 0, len(counts) - 1
    while low < high:
        middle = (low + high) // 2
        if speed(counts[middle]) >= target:
            high = middle
        else:
            low = middle + 1
    return counts[high]


def check_answers(search: Search) -> str:
    """Check the answers for the recorded H200, and for speeds that are easy to follow."""
    speeds, trained = recorded_speeds(MACHINE), training_speeds(MACHINE)
    for rung, precision in (("channels_last", "bf16"), ("device", "fp32"), ("compile", "bf16")):
        (synthetic,) = trained.query("rung == @rung and precision == @precision")["images_per_s"]
        _check_answer(search, speeds, SHARE * synthetic, f"the recorded H200, {rung} {precision}")
    for first, last, target in ((1, 16, 3500), (9, 16, 5400), (1, 1, 400), (1, 16, 8001)):
        speeds = {count: 500.0 * count for count in range(first, last + 1)}
        _check_answer(search, speeds, target, f"{first} to {last} workers of 500 images/s each")
    rng = random.Random(0)
    for size in range(2, 14):
        counts = sorted(rng.sample(range(1, 97), size))
        speeds = dict(zip(counts, sorted(rng.uniform(100, 9000) for _ in counts)))
        target = speeds[rng.choice(counts)] + rng.choice((-0.4, 0, 0.4))
        _check_answer(search, speeds, target, f"{counts} workers")
    return f"right for {MACHINE}, for workers of 500 images/s, and if no number is enough"


def _check_answer(
    search: Search, speeds: Mapping[int, float], target: float, machine: str
) -> list[int]:
    """Check one answer; return the counts whose speed was requested."""
    counts, calls = sorted(speeds), []

    def speed(count: int) -> float:
        calls.append(count)
        assert len(calls) < MANY, (
            f"{machine}: speed was called {MANY} times for {len(counts)} counts, and the search "
            f"did not end: does each round make the range smaller?"
        )
        assert count in speeds, (
            f"{machine}: speed({count!r}) was called, which is not in counts: call it with an "
            f"element of counts, not with a position"
        )
        return speeds[count]

    answer, expected = (
        results.call(search, speed, counts, target),
        fewest_workers(speeds.get, counts, target),
    )
    if answer == expected:
        return calls
    if expected is None:
        why = f"even {counts[-1]} reach only {digits(speeds[counts[-1]])} images/s"
    else:
        why = f"{expected} reach {digits(speeds[expected])} images/s"
        if expected != counts[0]:
            less = counts[counts.index(expected) - 1]
            why += f", {less} only {digits(speeds[less])}"
        if answer is not None and answer == counts.index(expected):
            why += ". Did you return a position instead of counts[position]?"
    raise AssertionError(
        f"{machine}, target {digits(target)} images/s: {answer}, expected {expected}: {why}"
    )


def check_calls(search: Search) -> str:
    """Check that the search halves the range, whichever number is the answer."""
    counts, most = range(1, 17), 1 + math.ceil(math.log2(16))
    for target in counts:
        calls = _check_answer(search, {n: float(n) for n in counts}, target, "1 to 16 workers")
        twice = next((count for count in calls if calls.count(count) > 1), None)
        assert twice is None, (
            f"speed({twice}) was called {calls.count(twice)} times: every call is a run, so keep "
            f"its result"
        )
        assert len(calls) <= most, (
            f"the answer {target} of 16 took {len(calls)} runs, expected at most {most}: try the "
            f"middle of the range, then continue with one half"
        )
    return f"at most {most} runs for 16 numbers of workers"


def judge_workers(
    workers: int | None, speeds: Mapping[int, float], counts: Sequence[int], target: float
) -> str:
    """Judge a number of workers by measured speeds: does it reach the target with the fewest?

    One more than the fewest passes, because speeds vary from run to run.

    Args:
        workers: the chosen number; None: none of the counts is enough.
        speeds: measured images/s by number of workers.
        counts: all numbers in question, ascending.
        target: images/s.
    """
    enough = [count for count in counts if speeds.get(count, 0.0) >= target]
    if workers is None and enough:
        return f"failed: workers={enough[0]} reaches the target of {digits(target)} images/s"
    if workers is None:
        best = digits(max(speeds.values(), default=0.0))
        return f"passed: unreachable here. At most {best} images/s; the target is {digits(target)}"
    if workers not in speeds:
        return f"failed: workers={workers} was not tried: launch that run"
    place = [*counts].index(workers)
    fewer = [count for count in counts[max(0, place - 2) : place] if count in speeds][-1:]
    verdict = "passed" if workers in enough else "failed"
    if verdict == "passed" and place and (enough[0] < counts[place - 1] or not fewer):
        untried = enough[0] if enough[0] < workers else counts[place - 1]
        return f"failed: try workers={untried}, which may be enough"
    shown = [f"{digits(speeds[workers])} images/s with workers={workers}"]
    shown += [f"{digits(speeds[count])} with workers={count}" for count in fewer]
    return f"{verdict}: {', '.join(shown)}; the target is {digits(target)}"
