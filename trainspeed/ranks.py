"""Which rank the others wait for, from the traces of all ranks on one machine.

A collective begins to transfer when the last rank has come. Until then, it only waits, also if
its kernel is on the GPU.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trainspeed.profile import Profile
from trainspeed.recorder import TRACED
from trainspeed.traces import (
    Intervals,
    Trace,
    computing,
    merge_intervals,
    steps,
    subtract_intervals,
)

Key = tuple[Any, ...]  # an iteration, and a collective in it: operation, type, bytes, which of them


@dataclass(frozen=True)
class Waiting:
    """How long ranks wait for slower ones, while nothing computes; each list is by rank.

    Attributes:
        of_step: shares of an iteration.
        of_communication: shares of the time in which a rank communicates, and nothing computes.
        last: shares of the collectives, of those that a rank begins last.
    """

    of_step: list[float]
    of_communication: list[float]
    last: list[float]

    @property
    def slowest(self) -> int:
        """The rank that begins most collectives last."""
        return max(range(len(self.last)), key=self.last.__getitem__)

    @property
    def longest(self) -> int:
        """The rank that waits the longest."""
        return max(range(len(self.of_step)), key=self.of_step.__getitem__)


def waiting_of(profiles: Sequence[Profile]) -> Waiting | None:
    """Split the communication of ranks into waiting for the slowest one, and the rest.

    Returns:
        None if it is not known: for one rank, without a trace of each, or if the traces have no
        collective of all ranks in common.
    """
    traces = [profile.trace for profile in profiles]
    if len(profiles) < 2 or any(trace is None for trace in traces):
        return None
    spans = [_collectives(*pair, len(profiles)) for pair in zip(profiles, traces)]
    common = set(spans[0]).intersection(*spans)
    if not common:
        return None
    # A rank whose profiler takes longer to start lets the others wait.
    starts = {_first_traced(profile) for profile in profiles}
    common = {key for key in common if key[0] not in starts} or common
    begins = {key: max(rank_spans[key][0] for rank_spans in spans) for key in common}
    last = Counter(max(range(len(spans)), key=lambda r: spans[r][key][0]) for key in common)
    of_step, of_communication = [], []
    for profile, trace, rank_spans in zip(profiles, traces, spans):
        busy = [(a + trace.origin_s, b + trace.origin_s) for a, b in computing(trace)]
        waits, sends = [], []
        for begin, end, last_begin in ((*rank_spans[key], begins[key]) for key in common):
            middle = min(last_begin, end)
            waits.append((begin, middle))
            sends.append((middle, end))
        # While another collective sends, the rank doesn't wait.
        wait_s = _exposed_s(waits, merge_intervals([*busy, *sends]))
        all_s = _exposed_s([rank_spans[key] for key in common], busy)
        window_s = _window_s(profile, trace, {key[0] for key in common})
        of_step.append(min(1.0, wait_s / window_s) if window_s else 0.0)
        of_communication.append(wait_s / all_s if all_s else 0.0)
    shares = [last[rank] / len(common) for rank in range(len(spans))]
    return Waiting(of_step, of_communication, shares)


def _first_traced(profile: Profile) -> int:
    """Return the number of the first traced iteration, which may differ between ranks."""
    kinds = [iteration["kind"] for iteration in profile.values["iterations"]]
    return kinds.index(TRACED) if TRACED in kinds else 0


def _collectives(profile: Profile, trace: Trace, ranks: int) -> dict[Key, tuple[float, float]]:
    """Return begin and end of the collectives of all ranks, by the machine's clock."""
    first, counts, spans = _first_traced(profile), Counter(), {}
    for row in trace.collectives.sort_values("start_s").itertuples():
        if row.group_size == ranks and row.step >= 0:
            kind = (first + row.step, row.operation, row.type, row.bytes)
            begin = trace.origin_s + row.start_s
            spans[(*kind, counts[kind])] = begin, begin + row.duration_s
            counts[kind] += 1
    return spans


def _exposed_s(spans: Intervals, busy: Intervals) -> float:
    pieces = (subtract_intervals(span, busy) for span in merge_intervals(spans))
    return sum(end - begin for part in pieces for begin, end in part)


def _window_s(profile: Profile, trace: Trace, iterations: set[int]) -> float:
    windows = steps(trace)
    inside = (windows["step"] + _first_traced(profile)).isin(iterations)
    return float((windows["end_s"] - windows["start_s"])[inside].sum())
