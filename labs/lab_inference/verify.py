"""Checks of the lab's two functions: each returns its evidence or asserts what is wrong."""

from __future__ import annotations

from collections.abc import Sequence
from math import isclose

from course.checks.async_device import FakeAsyncDevice
from labs.lab_inference.latency import Latencies
from labs.lab_inference.serving import Serve, random_arrivals, serve

COUNT, WARM_UP = 9, 3
WARM_UP_S, LONGEST_S = 0.03, 0.006  # durations of a call


def fake_device() -> FakeAsyncDevice:
    """Create a device whose first calls take long; later ones cycle through three durations."""
    return FakeAsyncDevice(
        lambda number: WARM_UP_S if number < WARM_UP else LONGEST_S * (1 + number % 3) / 3
    )


def check_times(latencies: Latencies) -> str:
    """Check that each call is timed until the device is done, without the warm-up."""
    with fake_device() as device:
        times = latencies(device.call, device.wait, COUNT, WARM_UP)
    calls = len(device.spans)
    assert calls == WARM_UP + COUNT, (
        f"{calls} calls were made: {WARM_UP} should warm up, and {COUNT} be timed"
    )
    assert isinstance(times, list) and len(times) == COUNT, (
        f"expected a list of {COUNT} times, one per call, but it returns {times!r}"[:200]
    )
    durations = [end - begin for begin, end in device.spans[WARM_UP:]]
    for measured, duration in zip(times, durations):
        assert measured >= duration, (
            f"a call that takes the device {1e3 * duration:.0f} ms is measured as "
            f"{1e3 * measured:.3f}: call() returns before the device is done. Wait, and only then "
            f"look at the clock"
        )
    assert times[0] < 2 * WARM_UP_S, (
        f"the first time is {1e3 * times[0]:.0f} ms, and its call takes {1e3 * durations[0]:.0f}: "
        f"it waited for calls that warm up. Wait after each of those, too"
    )
    shortest, longest = 1e3 * min(durations), 1e3 * max(durations)
    return f"{COUNT} calls of {shortest:.0f} to {longest:.0f} ms, each timed to its end"


def check_waits(latencies: Latencies) -> str:
    """Check that no call begins before the device is done with the one before."""
    with fake_device() as device:
        latencies(device.call, device.wait, COUNT, WARM_UP)
    pairs = zip(device.events, [*device.events[1:], ""])
    queued = sum(pair[0] == "call" and pair[1] != "wait" for pair in pairs)
    assert not queued, (
        f"{queued} calls were not waited for before the next: they queue up, and each time is also "
        f"the time of those before it"
    )
    return "the device is idle whenever a call begins"


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

    def __init__(self, max_batch: int) -> None:
        self.sizes: list[int] = []
        self._largest = max_batch

    def __call__(self, count: int) -> float:
        assert count >= 1, (
            "a batch of 0 requests was started: the oldest request belongs to it, even if it "
            "arrives exactly at the start (<=)"
        )
        assert count <= self._largest, (
            f"a batch has {count} requests, but max_batch={self._largest}"
        )
        self.sizes.append(count)
        return 1 + count / 2


def check_cases(function: Serve) -> str:
    """Check small cases, whose latencies one can compute by hand."""
    for name, arrivals, max_batch, max_wait, hint in CASES:
        words = f"{name} ({arrivals=}, {max_batch=}, {max_wait=:g})"
        latencies = _call(function, arrivals, max_batch, max_wait, words)
        expected = serve(arrivals, _Batches(max_batch), max_batch, max_wait)
        assert _are_near(latencies, expected), (
            f"{words}: {_words(latencies)}, expected {_words(expected)}: {hint}"
        )
    return f"right for {len(CASES)} cases: full batches, late requests, a busy GPU"


def _call(
    function: Serve, arrivals: Sequence[float], max_batch: int, max_wait: float, words: str
) -> list[float]:
    """Call the function, and check the form of what it returns."""
    batches = _Batches(max_batch)
    latencies = function([*arrivals], batches, max_batch, max_wait)
    assert isinstance(latencies, list), (
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
        f"{words}: a latency is {early[0]:.3g} s: a request can't be answered before it arrives. "
        f"`count` has only requests that have arrived when the batch starts"
    )
    return latencies


def check_replay(function: Serve) -> str:
    """Check 500 random arrivals, with several policies."""
    arrivals = [250 * arrival for arrival in random_arrivals(200.0)[:500]]  # 0.8 per second
    for max_batch, max_wait in ((1, 0.0), (8, 0.0), (8, 2.0), (64, 0.5)):
        words = f"{len(arrivals)} random arrivals, {max_batch=}, {max_wait=:g}"
        batches = _Batches(max_batch)
        expected = serve(arrivals, batches, max_batch, max_wait)
        latencies = _call(function, arrivals, max_batch, max_wait, words)
        wrong = sum(not _is_near(*pair) for pair in zip(latencies, expected))
        assert not wrong, f"{words}: {wrong} latencies are wrong"
    return f"{len(arrivals)} random arrivals have the right latencies, with four policies"


def _are_near(actual: Sequence[float], expected: Sequence[float]) -> bool:
    return all(map(_is_near, actual, expected))


def _is_near(actual: float, expected: float) -> bool:
    return isclose(actual, expected, rel_tol=1e-6, abs_tol=1e-9)


def _words(latencies: Sequence[float]) -> str:
    return ", ".join(f"{latency:.3g}" for latency in latencies) + " s"
