"""Count the compiler's graphs in a run, and the breaks between them."""

from __future__ import annotations

from collections import Counter
from typing import Any

MOST = 4  # so many reasons are noted
REASON = 240  # so many characters of why a graph broke


class Compiled:
    """What the compiler makes in a run: graphs, and places where it left a function to Python.

    Dynamo counts both for itself, so that asking hinders nothing. It is only to be asked in a run
    that compiles: importing it takes seconds.
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
        """From here on nothing should be compiled any more."""
        self._warmed_up = self._graphs() - self._before[0]

    def end_epoch(self) -> None:
        """The training steps of an epoch are over; its validation is still to come."""
        self._after_epochs.append(self._graphs() - self._before[0])

    def evidence(self) -> dict[str, Any]:
        """For the record.

        graphs: how many were made until the end of each epoch's training. warmed_up: until the
        end of warm-up. breaks: why a graph ended before its function did, each reason with how
        often it did.
        """
        counts = Counter(self._counters["graph_break"]) - self._before[1]
        breaks = {_reason(page): times for page, times in counts.most_common(MOST)}
        return {"graphs": self._after_epochs, "warmed_up": self._warmed_up, "breaks": breaks}


def _reason(page: str) -> str:
    """Of Dynamo's page about a break the two lines that say what it met."""
    lines = [line.strip() for line in page.splitlines()[:2]]
    return ": ".join(line.removeprefix("Explanation: ") for line in lines)[:REASON]
