"""Sample what a thread does, to see which part of loading, and which line, takes the time."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from trainspeed.lines import describe, direct_line_of, frames, is_own

INTERVAL_S = 0.004
WORKER_SECONDS = 5.0  # for which a DataLoader worker is sampled
FETCH = str(Path("torch", "utils", "data", "_utils", "fetch.py"))
ITEM = ("__getitem__", "__getitems__", "__iter__", "__next__", "<listcomp>", "<genexpr>", "fetch")
CALLS = ("__call__", "forward", "_call_impl", "_wrapped_call_impl")
CONTAINERS = ("Compose", "Sequential")
WRAPPERS = ("inner", "wrapper", "wrapped", "_fn", "decorate_context")


class StackSampler(threading.Thread):
    """Sum what a thread is doing: its stage while it fetches, else the user's line.

    A sample counts for the seconds since the last one: while the thread executes Python, this one
    waits longer for the interpreter's lock, and samples are rarer.

    Attributes:
        is_on: whether the thread fetches a batch.
        lines: for how long each of the user's lines called operators, while it did not; "": for
            how long modules and libraries did.
    """

    def __init__(self, thread: int) -> None:
        super().__init__(name="trainspeed-sampler", daemon=True)
        self.counts: Counter[tuple[str, str]] = Counter()  # seconds
        self.lines: Counter[str] = Counter()
        self.is_on = self.is_over = False
        self._thread = thread

    def run(self) -> None:
        last = time.perf_counter()
        while not self.is_over:
            at = time.perf_counter()
            passed, last = at - last, at
            if frame := sys._current_frames().get(self._thread):
                if not self.is_on:
                    self.lines[direct_line_of(frame)] += passed
                elif stage := stage_of(frame):
                    self.counts[stage] += passed
                del frame
            time.sleep(INTERVAL_S)

    def rows(self) -> list[dict[str, Any]]:
        """Return the stages, the most frequent first: stage, line, count."""
        return [
            {"stage": stage, "line": line, "count": count}
            for (stage, line), count in self.counts.most_common()
        ]


def stage_of(frame: FrameType) -> tuple[str, str] | None:
    """Return the stage of loading in which a thread is, and the user's line that led to it.

    A stage is what the dataset's `__getitem__` calls: a transform (of a Compose, the one inside),
    the function that opens a file, or `__getitem__` itself; or the function that collates a batch.

    Returns:
        None if the thread is not fetching.
    """
    stack = [*frames(frame)][::-1]  # the outermost first
    fetch = [at for at, frame in enumerate(stack) if frame.f_code.co_filename.endswith(FETCH)]
    if not fetch:
        return None
    inside = stack[fetch[-1] + 1 :]
    own = [frame for frame in inside if is_own(frame.f_code.co_filename)]
    line = describe(own[-1]) if own else ""
    calls = [frame for frame in inside if frame.f_code.co_name not in ITEM + WRAPPERS]
    for frame in calls:
        if frame.f_code.co_name in CALLS:
            name = type(frame.f_locals.get("self")).__name__
            if name not in CONTAINERS:
                return name, line
        else:
            return frame.f_code.co_name, line
    items = [frame for frame in inside if frame.f_code.co_name in ITEM]
    owner = type(items[-1].f_locals.get("self")).__name__ if items else ""
    return (f"{owner}.{items[-1].f_code.co_name}" if items else "fetch"), line


class SampleWorker:
    """A DataLoader's `worker_init_fn`, which also samples the worker for its first seconds."""

    def __init__(self, original: Callable[[int], None] | None, folder: str) -> None:
        self.original, self.folder = original, folder

    def __call__(self, worker: int) -> None:
        if self.original is not None:
            self.original(worker)
        if worker == 0:  # one shows what all of them do
            sampler = StackSampler(threading.get_ident())
            sampler.is_on = True
            sampler.start()
            path = Path(self.folder, f"worker-{os.getpid()}.json")
            threading.Thread(target=_write_samples, args=(sampler, path), daemon=True).start()


def _write_samples(sampler: StackSampler, path: Path) -> None:
    for _ in range(10):  # in case the worker ends early
        time.sleep(WORKER_SECONDS / 10)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(sampler.rows()))
        os.replace(part, path)
    sampler.is_over = True
