"""A device that works while its caller continues: checks of functions that time a GPU use it."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


class FakeAsyncDevice:
    """A device that works in a thread while its caller continues, as a GPU does.

    Use it as a context: at its end, all work is done.

    Attributes:
        events: the calls of its methods, "call" or "wait".
        spans: the begin and end of each call's work, as if it had not been queued.

    Args:
        seconds: takes a call's number, from 0; returns how long its work takes.
    """

    def __init__(self, seconds: Callable[[int], float]) -> None:
        self.events: list[str] = []
        self.spans: list[tuple[float, float]] = []
        self._seconds, self._thread = seconds, ThreadPoolExecutor(1)

    def __enter__(self) -> FakeAsyncDevice:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown()

    def call(self) -> None:
        """Queue work, and return before it is done; a third of the time, the host is busy."""
        seconds = self._seconds(self.events.count("call"))
        self.events.append("call")
        time.sleep(seconds / 3)
        self._thread.submit(self._work, seconds)

    def wait(self) -> None:
        """Return when all queued work is done."""
        self.events.append("wait")
        self._thread.submit(int).result()

    def _work(self, seconds: float) -> None:
        time.sleep(seconds * 2 / 3)
        end = time.perf_counter()
        self.spans.append((end - seconds, end))
