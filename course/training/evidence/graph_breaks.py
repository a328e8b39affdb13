"""Count the compiler's graphs in a run, and the breaks between them."""

from __future__ import annotations

from collections import Counter

from course._compat import compiler_counters
from course.runs.evidence import NOT_APPLICABLE, Compiled, NotApplicable

MOST = 4  # reasons that are stored, at most
REASON = 240  # characters of each reason, at most


class Graphs:
    """Counts the compiler's graphs in a run, and the breaks where it returned to Python.

    Dynamo counts both anyway, so reading its counters disturbs nothing. Create this only in a run
    that compiles, because importing Dynamo takes seconds.
    """

    def __init__(self) -> None:
        self._counters = compiler_counters()
        self._before = self._graphs(), Counter(self._counters["graph_break"])
        self._after_epochs: list[int] = []
        self._warmed_up: int | NotApplicable = NOT_APPLICABLE

    def _graphs(self) -> int:
        return self._counters["stats"]["unique_graphs"]

    def end_warmup(self) -> None:
        """Note the number of graphs after warm-up; nothing should be compiled later."""
        self._warmed_up = self._graphs() - self._before[0]

    def end_epoch(self) -> None:
        """Note the number of graphs after an epoch's training steps, before its validation."""
        self._after_epochs.append(self._graphs() - self._before[0])

    def evidence(self) -> Compiled:
        """Return the evidence for the record."""
        counts = Counter(self._counters["graph_break"]) - self._before[1]
        breaks = {_reason(page): times for page, times in counts.most_common(MOST)}
        return Compiled(self._after_epochs, breaks, self._warmed_up)


def _reason(page: str) -> str:
    """Return the first two lines of Dynamo's message about a graph break, which give the cause."""
    lines = [line.strip() for line in page.splitlines()[:2]]
    return ": ".join(line.removeprefix("Explanation: ") for line in lines)[:REASON]
