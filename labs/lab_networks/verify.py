"""The lab's timing function, and its checks on a device with a queue."""

from __future__ import annotations

import time
from collections.abc import Callable

from course.checks.async_device import FakeAsyncDevice

Step = Callable[[], None]
Timing = Callable[[Step, Step, int, int], float]
WARMUP, ITERATIONS = 10, 10
WARMUP_S, STEP_S = 0.006, 0.003  # of a step, in the warm-up and after it
TOLERANCE = (0.75, 1.3)  # of a measured ratio, because other programs use this machine, too


def seconds_per_step(step: Step, wait: Step, warmup: int, iterations: int) -> float:
    """Time a step. `step()` queues work and returns; `wait()` returns when all is done."""
    for _ in range(warmup):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(iterations):
        step()
    wait()
    return (time.perf_counter() - begin) / iterations


def _run(timing: Timing) -> tuple[float, FakeAsyncDevice]:
    """Call a timing function with a device whose steps take longer in the warm-up."""
    with FakeAsyncDevice(lambda number: WARMUP_S if number < WARMUP else STEP_S) as device:
        result = timing(device.call, device.wait, WARMUP, ITERATIONS)
    return result, device


def check_seconds(timing: Timing) -> str:
    """Check that the result is the device's time for one step after the warm-up."""
    result, device = _run(timing)
    steps = len(device.spans)
    assert steps == WARMUP + ITERATIONS, (
        f"it runs {steps} steps; expected {WARMUP} of warm-up and {ITERATIONS} timed ones"
    )
    assert isinstance(result, float), f"it returns {type(result).__name__}; expected seconds"
    true = (device.spans[-1][1] - device.spans[WARMUP][0]) / ITERATIONS
    words = f"it returns {1e3 * result:.2f} ms, and the device took {1e3 * true:.2f} ms per step"
    assert not _is_near(result, ITERATIONS * true), (
        f"{words}: that is all {ITERATIONS} steps together, divide by their number"
    )
    assert not _is_near(result, true * ITERATIONS / (WARMUP + ITERATIONS)), (
        f"{words}: only the steps after the warm-up are timed, so divide by their number"
    )
    assert result > TOLERANCE[0] * true, (
        f"{words}: the clock is read while the device still computes. Wait before it is read again"
    )
    assert result < TOLERANCE[1] * true, (
        f"{words}: it includes queued steps of the warm-up. Wait before the clock starts"
    )
    return f"{words}, without the warm-up"


def _is_near(result: float, reference: float) -> bool:
    return TOLERANCE[0] < result / reference < TOLERANCE[1]


def check_waits(timing: Timing) -> str:
    """Check that it waits after the warm-up and at the end, but not between timed steps."""
    _, device = _run(timing)
    places = [place for place, event in enumerate(device.events) if event == "call"]
    first, last = places[WARMUP], places[-1]
    assert "wait" in device.events[places[WARMUP - 1] : first], (
        "it does not wait for the warm-up: call wait() before the clock starts"
    )
    assert "wait" in device.events[last:], (
        "it does not wait for the last step: call wait() before the clock is read again"
    )
    between = device.events[first:last].count("wait")
    assert not between, (
        f"it waits {between} times between timed steps: then the device is idle until the next one "
        f"is queued, unlike in training"
    )
    return "it waits after the warm-up and after the last step, and not between"
