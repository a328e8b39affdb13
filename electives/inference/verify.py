"""Checks of the lab's two functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose
from time import perf_counter

import numpy as np

from course.lab import results
from electives.inference.async_device import FakeAsyncDevice
from electives.inference.latency import Latencies
from electives.inference.serving import Serve, StepTime, random_arrivals, serve

COUNT, WARM_UP = 9, 3
WARM_UP_S, LONGEST_S = 0.03, 0.006  # durations of a call


def fake_device(warm_up: int = WARM_UP) -> FakeAsyncDevice:
    """Create a device whose first calls take long; later ones cycle through three durations."""
    return FakeAsyncDevice(
        lambda number: WARM_UP_S if number < warm_up else LONGEST_S * (1 + number % 3) / 3
    )


def check_times(latencies: Latencies) -> str:
    """Check that each call is timed until the device is done, without the warm-up."""
    for count, warm_up in ((COUNT, WARM_UP), (4, 0), (2, 5)):
        shortest, longest = _check_times(latencies, count, warm_up)
    return f"{COUNT} calls of {shortest:.0f} to {longest:.0f} ms, each timed to its end"


def _check_times(latencies: Latencies, count: int, warm_up: int) -> tuple[float, float]:
    """Check the times of some calls; return the shortest and the longest of a call's work in ms."""
    started = perf_counter()
    with fake_device(warm_up) as device:
        times = latencies(device.call, device.wait, count, warm_up)
        ended = perf_counter()
    calls = len(device.spans)
    assert calls == warm_up + count, (
        f"{calls} calls were made: {warm_up} should warm up, and {count} be timed"
    )
    assert isinstance(times, list | tuple | np.ndarray) and len(times) == count, (
        f"expected a list of {count} times, one per call, but it returns {times!r}"[:200]
    )
    durations = [end - begin for begin, end in device.spans[warm_up:]]
    _assert_seconds(times, durations, started)
    for measured, duration in zip(times, durations):
        assert measured >= duration, (
            f"a call that takes the device {1e3 * duration:.0f} ms is measured as "
            f"{1e3 * measured:.3f}: call() returns before the device is done. Look at the clock "
            f"before call(), and again after wait(); keep the times in the order of the calls"
        )
    first = [place for place, event in enumerate(device.events) if event == "call"][warm_up]
    assert not warm_up or device.events[first - 1] == "wait", (
        f"the first time is {1e3 * times[0]:.0f} ms, and its call takes {1e3 * durations[0]:.0f}: "
        f"it waited for calls that warm up. Wait after each of those, too"
    )
    timed_s = ended - (device.spans[warm_up - 1][1] if warm_up else started)
    assert sum(times) <= timed_s, (
        f"the times add up to {1e3 * sum(times):.0f} ms, but these {count} calls took only "
        f"{1e3 * timed_s:.0f}: set `begin` again before each call"
    )
    return 1e3 * min(durations), 1e3 * max(durations)


def _assert_seconds(times: list[float], durations: list[float], started: float) -> None:
    """Check that times are differences between two readings of the clock, in seconds."""
    assert min(times) > 0, f"a time is {min(times):.3g} s: it is perf_counter() - begin"
    if all(measured >= 1000 * duration for measured, duration in zip(times, durations)):
        assert times[0] < started, (
            f"the first time is {times[0]:.6g} s: that is the clock itself. Subtract `begin`"
        )
        raise AssertionError(
            f"a call that takes {1e3 * durations[0]:.0f} ms is measured as {times[0]:.3g} s: "
            f"return seconds, as perf_counter() does"
        )


def check_waits(latencies: Latencies) -> str:
    """Check that no timed call begins before the device is done with the one before."""
    with fake_device() as device:
        latencies(device.call, device.wait, COUNT, WARM_UP)
    calls = [place for place, event in enumerate(device.events) if event == "call"][WARM_UP:]
    queued = sum(device.events[place - 1] != "wait" for place in calls)
    assert not queued, (
        f"{queued} timed calls began while the device was busy with an earlier one, so their times "
        f"contain that one's time: wait after each call"
    )
    return "the device is idle whenever a timed call begins"


# What a case is about; arrivals, max_batch, max_wait; and a hint for a wrong answer. A batch of n
# requests takes 1 + n / 2 seconds.
CASES = (
    (
        "no waiting",
        [3.0],
        4,
        0.0,
        "a free GPU starts at once if max_wait is 0, even if the batch never becomes full",
    ),
    (
        "one request",
        [10.0],
        4,
        2.0,
        "it waits max_wait for others, and its latency counts from its arrival",
    ),
    ("a full batch", [0.0, 1.0], 2, 9.0, "a batch starts as soon as it is full, before max_wait"),
    (
        "the GPU is busy",
        [0.0, 0.5],
        1,
        0.0,
        "the second batch can't start before the GPU is free: compare with `free`",
    ),
    (
        "requests arrive while the GPU is busy",
        [0.0, 0.2, 0.4, 0.6, 0.8],
        3,
        0.0,
        "exactly the requests that have arrived when a batch starts belong to it, up to max_batch",
    ),
    (
        "the next request arrives late",
        [0.0, 7.0],
        2,
        1.0,
        "only requests that have arrived when the batch starts belong to it",
    ),
    (
        "two requests are left",
        [0.0, 0.5],
        4,
        3.0,
        "the last batch never becomes full: it starts after max_wait, counted from its *oldest* "
        "request",
    ),
)


class _Batches:
    """Return the seconds of a batch, and record the sizes of all batches."""

    def __init__(self, max_batch: int, step_s: StepTime = lambda count: 1 + count / 2) -> None:
        self.sizes: list[int] = []
        self._largest, self._step_s = max_batch, step_s

    def __call__(self, count: int) -> float:
        assert count >= 1, (
            "a batch of 0 requests was started: `start` can't be before the oldest request "
            "arrives, and a request that arrives exactly at the start belongs to the batch (<=)"
        )
        assert count <= self._largest, (
            f"a batch has {count} requests, but max_batch={self._largest}"
        )
        self.sizes.append(count)
        return self._step_s(count)


def check_cases(function: Serve) -> str:
    """Check small cases, whose latencies one can compute by hand."""
    for name, arrivals, max_batch, max_wait, hint in CASES:
        words = f"{name} ({arrivals=}, {max_batch=}, {max_wait=:g})"
        latencies, sizes = _call(function, arrivals, max_batch, max_wait, words)
        expected = serve(arrivals, reference := _Batches(max_batch), max_batch, max_wait)
        if sizes == reference.sizes and _is_near(latencies[0], expected[0]):
            first = slice(sizes[0])  # the first batch
            if not _are_near(latencies[first], expected[first]):
                hint = "each latency counts from the arrival of its own request"
        assert _are_near(latencies, expected), (
            f"{words}: {_words(latencies)}, expected {_words(expected)}: {hint}"
        )
    return f"right for {len(CASES)} cases: full batches, late requests, a busy GPU"


def _call(
    function: Serve,
    arrivals: Sequence[float],
    max_batch: int,
    max_wait: float,
    words: str,
    *step_s: StepTime,
) -> tuple[list[float], list[int]]:
    """Call the function and check the form of its result; return it with the batches' sizes."""
    batches = _Batches(max_batch, *step_s)
    latencies = results.call(function, [*arrivals], batches, max_batch, max_wait)
    assert isinstance(latencies, list | tuple | np.ndarray), (
        f"it returns {type(latencies).__name__}; expected a list of latencies"
    )
    assert len(latencies) == len(arrivals), (
        f"{words}: {len(latencies)} latencies for {len(arrivals)} requests: add one for each "
        f"request of a batch"
    )
    total = sum(batches.sizes)
    assert total == len(arrivals), (
        f"{words}: step_s was called for {total} requests in all, but {len(arrivals)} arrive: a "
        f"batch has only requests that have arrived when it starts"
    )
    early = [latency for latency in latencies if latency <= 0]
    assert not early, (
        f"{words}: a latency is {early[0]:.3g} s. It ends when its batch does, step_s(count) after "
        f"`start`, and begins when its request arrives, which is before `start`"
    )
    return latencies, batches.sizes


def check_replay(function: Serve) -> str:
    """Check 500 random arrivals, with several policies."""
    arrivals = [250 * arrival for arrival in random_arrivals(200.0)[:500]]  # 0.8 per second
    for max_batch, max_wait in ((1, 0.0), (8, 0.0), (8, 2.0), (64, 0.5)):
        words = f"{len(arrivals)} random arrivals, {max_batch=}, {max_wait=:g}"
        expected = serve(arrivals, _uneven_step_s, max_batch, max_wait)
        latencies, _ = _call(function, arrivals, max_batch, max_wait, words, _uneven_step_s)
        wrong = sum(not _is_near(*pair) for pair in zip(latencies, expected))
        assert not wrong, f"{words}: {wrong} latencies are wrong"
    return f"{len(arrivals)} random arrivals have the right latencies, with four policies"


def _uneven_step_s(count: int) -> float:
    """Return the seconds of a batch on a device with a faster kernel for every third size."""
    return 0.9 if count % 3 == 0 else 0.6 + 0.25 * count


def _are_near(actual: Sequence[float], expected: Sequence[float]) -> bool:
    return all(map(_is_near, actual, expected))


def _is_near(actual: float, expected: float) -> bool:
    return isclose(actual, expected, rel_tol=1e-6, abs_tol=1e-9)


def _words(latencies: Sequence[float]) -> str:
    return ", ".join(f"{latency:.3g}" for latency in latencies) + " s"
