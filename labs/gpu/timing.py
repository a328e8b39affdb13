"""Timing a device that works through a queue: a simulated one, and the check of a function."""

from __future__ import annotations

from collections.abc import Callable

from course.lab import results

Call = Callable[[], None]
DeviceTime = Callable[[Call, Call, Callable[[], float], int], float]
PRODUCT = {"launch_s": 5e-5, "work_s": 0.022}  # as a product of side 8192 in fp32 on an H100


class SimulatedGpu:
    """A host that launches work, and a device that does it in order, with one simulated clock.

    Args:
        launch_s: what a launch takes the host.
        work_s: what a call takes the device.
        first_s: what the device needs in addition for the first call.
        queued_s: work of others that is already in the queue.
    """

    def __init__(
        self, launch_s: float, work_s: float, first_s: float = 0.5, queued_s: float = 0.0
    ) -> None:
        self.launch_s, self.work_s, self.first_s = launch_s, work_s, first_s
        self.now_s = 1000.0  # clocks don't begin at 0
        self.free_s = self.now_s + queued_s  # when the device has done all that was launched
        self.calls = 0

    def call(self) -> None:
        """Launch one call, and return before the device has done it."""
        self.now_s += self.launch_s
        work_s = self.work_s + self.first_s * (self.calls == 0)
        self.free_s = max(self.free_s, self.now_s) + work_s
        self.calls += 1

    def wait(self) -> None:
        """Return when the queue is empty."""
        self.now_s = max(self.now_s, self.free_s)

    def clock(self) -> float:
        """Return the seconds."""
        return self.now_s


def device_time_s(
    call: Call,
    wait: Call,
    clock: Callable[[], float],
    repeats: int = 10,
    *,
    warm_up: bool = True,
    wait_before: bool = True,
    wait_in_loop: bool = False,
    wait_after: bool = True,
) -> float:
    """Return the mean seconds of a call; the last four arguments make the usual mistakes."""
    if warm_up:
        call()
    if wait_before:
        wait()
    begin = clock()
    for _ in range(repeats):
        call()
        if wait_in_loop:
            wait()
    if wait_after:
        wait()
    return (clock() - begin) / repeats


MISTAKES = {
    "the clock stops before the device has finished: wait before you read it again": {
        "wait_after": False
    },
    "the first call counts, which is slower than the rest: make one before you start the clock": {
        "warm_up": False
    },
    "the clock starts while work is still in the queue: wait before you start it": {
        "wait_before": False
    },
    "it waits after each call, so the host can't launch ahead: wait once, after all of them": {
        "wait_in_loop": True
    },
}
GPUS = {
    "products of 22 ms": PRODUCT,
    "products of 22 ms, behind 0.3 s of other work": PRODUCT | {"queued_s": 0.3},
    "small kernels of 10 µs, which the host launches every 40 µs": {
        "launch_s": 4e-5,
        "work_s": 1e-5,
        "first_s": 0.02,
    },
}


def check_seconds(function: DeviceTime) -> str:
    """Check the seconds of a call on several simulated devices, for 1, 10 and 25 calls."""
    for name, settings in GPUS.items():
        for repeats in (10, 1, 25):
            seconds = _measure(function, settings, repeats)
            expected = _measure(device_time_s, settings, repeats)
            mistakes = {
                _measure(device_time_s, settings, repeats, **wrong): words
                for words, wrong in MISTAKES.items()
            }
            mistakes |= {
                expected * repeats: "these are the seconds of all calls: divide by `repeats`",
                expected * 1e3: "these are milliseconds",
            }
            words = f"{name}, {repeats=}, in seconds"
            rule = "read `clock()` right before the first call that counts, and after the last wait"
            results.compare(words, seconds, expected, mistakes, rule=rule)
    return f"right on {len(GPUS)} simulated devices, also where other work is in the queue"


def check_calls(function: DeviceTime) -> str:
    """Check how many calls are made: the ones that count, and a few to warm up."""
    for repeats in (1, 10):
        gpu = SimulatedGpu(**PRODUCT)
        function(gpu.call, gpu.wait, gpu.clock, repeats)
        assert repeats < gpu.calls <= repeats + 5, (
            f"{repeats=}: it makes {gpu.calls} calls, expected {repeats} that count and one to "
            f"five to warm up"
        )
    return "it warms up, and makes as many calls as it should"


def _measure(function: DeviceTime, settings: dict, repeats: int, **wrong: bool) -> float:
    gpu = SimulatedGpu(**settings)
    (seconds,) = results.numbers(function(gpu.call, gpu.wait, gpu.clock, repeats, **wrong), "s")
    return seconds
