"""Count the compiler's graphs in a run, and the breaks between them."""

from __future__ import annotations

from collections import Counter
from typing import Any

MOST = 4  # reasons that are stored, at most
REASON = 240  # characters of each reason, at most


class Compiled:
    """Counts the compiler's graphs in a run, and the breaks where it returned to Python.

    Dynamo counts both anyway, so reading its counters disturbs nothing. Create this only in a run
    that compiles, because importing Dynamo takes seconds.
    """

    def __init__(self) -> None:
        from torch._dynamo.utils import counters

        self._counters = counters
        self._before = self._graphs(), Counter(counters["graph_break"])
        self._after_epochs: list[int] = []
        self._warmed_up: int | None = None

    def _graphs(self) -> int:
        return self._counters["stats"]["unique_graphs"]

    def end_warmup(self) -> None:
        """Note the number of graphs after warm-up; nothing should be compiled later."""
        self._warmed_up = self._graphs() - self._before[0]

    def end_epoch(self) -> None:
        """Note the number of graphs after an epoch's training steps, before its validation."""
        self._after_epochs.append(self._graphs() - self._before[0])

    def evidence(self) -> dict[str, Any]:
        """Return the evidence for the record.

        graphs: the number of graphs at the end of each epoch's training. warmed_up: the number at
        the end of warm-up. breaks: the reasons why a graph ended before its function did, each with
        how often it occurred.
        """
        counts = Counter(self._counters["graph_break"]) - self._before[1]
        breaks = {_reason(page): times for page, times in counts.most_common(MOST)}
        return {"graphs": self._after_epochs, "warmed_up": self._warmed_up, "breaks": breaks}


def _reason(page: str) -> str:
    """Return the first two lines of Dynamo's message about a graph break, which give the cause."""
    lines = [line.strip() for line in page.splitlines()[:2]]
    return ": ".join(line.removeprefix("Explanation: ") for line in lines)[:REASON]
