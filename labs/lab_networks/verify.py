"""How a step is timed: ours, and what a learner's function must do on a device with a queue."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

Step = Callable[[], None]
Timing = Callable[[Step, Step, int, int], float]
WARMUP, ITERATIONS = 10, 10
SLOW_S, USUAL_S = 0.006, 0.003  # of a step, in warm-up and after it
NEAR = (0.75, 1.3)  # what is measured may be off by that, since others use this machine, too


def seconds_a_step(step: Step, wait: Step, warmup: int, iterations: int) -> float:
    """Seconds of one step. `step()` queues work and returns; `wait()` returns when all is done."""
    for _ in range(warmup):
        step()
    wait()
    begin = time.perf_counter()
    for _ in range(iterations):
        step()
    wait()
    return (time.perf_counter() - begin) / iterations


class Queue:
    """A device: a thread that does one piece of work after the other, as they were queued.

    Attributes:
        asked: what was asked of it, "step" or "wait", in order.
        done: when each piece of work began and ended.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.done: list[tuple[float, float]] = []
        self._thread = ThreadPoolExecutor(1)

    def step(self) -> None:
        """Queue the next piece of work; those of the warm-up take longer."""
        slow = self.asked.count("step") < WARMUP
        self.asked.append("step")
        self._thread.submit(self._work, SLOW_S if slow else USUAL_S)

    def wait(self) -> None:
        """Return when all that is queued is done."""
        self.asked.append("wait")
        self._thread.submit(int).result()

    def _work(self, takes_s: float) -> None:
        begin = time.perf_counter()
        time.sleep(takes_s)
        self.done.append((begin, time.perf_counter()))

    def end(self) -> None:
        """Do what is left."""
        self._thread.shutdown()


def is_right(timing: Timing) -> str:
    """Is it the device's time for one step, and of those after the warm-up alone?"""
    queue = Queue()
    found = timing(queue.step, queue.wait, WARMUP, ITERATIONS)
    queue.end()
    steps = len(queue.done)
    assert steps == WARMUP + ITERATIONS, (
        f"it makes {steps} steps: {WARMUP} of warm-up and {ITERATIONS} to be timed are due"
    )
    assert isinstance(found, float), f"it returns {type(found).__name__}: seconds are asked for"
    true = (queue.done[-1][1] - queue.done[WARMUP][0]) / ITERATIONS
    told = f"it says {1e3 * found:.2f} ms, and the device took {1e3 * true:.2f} ms a step"
    assert not _near(found, ITERATIONS * true), (
        f"{told}: that is all {ITERATIONS} steps together, divide by their number"
    )
    assert not _near(found, true * ITERATIONS / (WARMUP + ITERATIONS)), (
        f"{told}: only the steps after the warm-up are timed, so divide by their number alone"
    )
    assert found > NEAR[0] * true, (
        f"{told}: the clock is read while the device still computes. Wait for it first"
    )
    assert found < NEAR[1] * true, (
        f"{told}: what warm-up left in the queue is in it. Wait before the clock starts"
    )
    return f"{told}, warm-up left out"


def _near(found: float, other: float) -> bool:
    return NEAR[0] < found / other < NEAR[1]


def waits_where_it_must(timing: Timing) -> str:
    """Does it wait after the warm-up and at the end, and nowhere between?"""
    queue = Queue()
    timing(queue.step, queue.wait, WARMUP, ITERATIONS)
    queue.end()
    places = [at for at, what in enumerate(queue.asked) if what == "step"]
    first, last = places[WARMUP], places[-1]
    assert "wait" in queue.asked[places[WARMUP - 1] : first], (
        "it does not ask the device whether warm-up is over: call wait() before the clock starts"
    )
    assert "wait" in queue.asked[last:], (
        "it does not ask the device whether the last step is over: call wait() before the clock is "
        "read again"
    )
    between = queue.asked[first:last].count("wait")
    assert not between, (
        f"it waits {between} times between timed steps: then the device stands idle until the next "
        f"one is queued, which no training would let it"
    )
    return "it waits after the warm-up and after the last step, and nowhere between"
