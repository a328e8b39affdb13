"""ASHA, asynchronous successive halving: its rule, simulated on recorded runs, and its check."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence, Set

import numpy as np
import pandas as pd

from course.lab import results
from labs.search.halving import EPOCHS, FACTOR, Replay

Promote = Callable[[Mapping[int, float], Set[int], int], int | None]


def promote(results: Mapping[int, float], promoted: Set[int], factor: int = FACTOR) -> int | None:
    """Return the trial that continues next, or None if none may (Li et al., arXiv:1810.05934).

    Args:
        results: accuracies of the trials that have completed this round so far.
        promoted: those that have already continued.
        factor: one of this many trials continues.
    """
    ranked = sorted(results, key=results.get, reverse=True)
    candidates = (trial for trial in ranked[: len(ranked) // factor] if trial not in promoted)
    return next(candidates, None)


def simulate_workers(
    promote: Promote, replay: Replay, slowness: Sequence[float], *, waits: bool
) -> pd.DataFrame:
    """Return what each worker trains when: worker, begin, end, trial, round (from 1), epochs.

    Args:
        slowness: the time of an epoch, for each worker.
        waits: a round begins only when all trials of the round before have ended.
    """
    count = len(replay.trials)
    waiting = np.random.default_rng(0).permutation(count).tolist()
    completed: list[dict[int, float]] = [{} for _ in EPOCHS]
    started: list[set[int]] = [set() for _ in EPOCHS]

    def choose() -> tuple[int, int] | None:
        for place in reversed(range(1, len(EPOCHS))):
            before = completed[place - 1]
            if waits and len(before) < count // FACTOR ** (place - 1):
                continue
            trial = promote(dict(before), set(started[place]), FACTOR)
            if trial is not None:
                return place, trial
        return (0, waiting.pop(0)) if waiting else None

    now, idle, ends, rows = 0.0, [*range(len(slowness))], [], []
    while True:
        while idle and (choice := choose()):
            (place, trial), worker = choice, idle.pop(0)
            started[place].add(trial)
            epochs = EPOCHS[place] - (EPOCHS[place - 1] if place else 0)
            end = now + epochs * slowness[worker]
            heapq.heappush(ends, (end, worker, place, trial))
            row = {"worker": worker, "begin": now, "end": end, "trial": trial}
            rows.append(row | {"round": place + 1, "epochs": epochs})
        if not ends:
            return pd.DataFrame(rows)
        now = ends[0][0]
        while ends and ends[0][0] == now:
            _, worker, place, trial = heapq.heappop(ends)
            completed[place][trial] = replay.train(trial, EPOCHS[place])
            idle = sorted([*idle, worker])


def check_rule(function: Promote) -> str:
    """Check which trial continues, for planted accuracies."""
    five = {4: 0.2, 7: 0.5, 1: 0.3, 9: 0.4, 2: 0.1}
    seven = five | {3: 0.45, 5: 0.05}
    cases = (
        (dict([*five.items()][:2]), set(), 3, "with two results, no third may continue yet"),
        (five, set(), 3, "return the best trial of the best `len(results) // factor`"),
        (five, {7}, 3, "one of five may continue, and it already has"),
        (seven, {7}, 3, "of seven results, the best two may continue, and the best one has"),
        (seven, {7, 9}, 3, "9 continued early, and 3 has overtaken it: it may continue, too"),
        (seven, set(), 3, "of seven results, the best two may continue: return the best one"),
        ({0: 0.5, 4: 0.2, 1: 0.3}, set(), 3, "0 is a trial, and None is none"),
        (five, {7}, 2, "use `factor`: of five results, the best two may continue"),
    )
    for accuracies, promoted, factor, reason in cases:
        result = results.call(function, accuracies, promoted, factor)
        expected = promote(accuracies, promoted, factor)
        assert result == expected and (result is None) == (expected is None), (
            f"results={accuracies}, {promoted=}, {factor=}: it returns {result!r}, expected "
            f"{expected}: {reason}"
        )
    return "a trial continues as soon as it is among the best third so far"


def check_recorded(function: Promote) -> str:
    """Check the search of the recorded training runs by eight workers."""
    replay = Replay.of_grid()
    table = simulate_workers(function, replay, [1] * 8, waits=False)
    result = replay.curves[table.loc[table["round"] == len(EPOCHS), "trial"], -1].max()
    best = replay.curves[:, -1].max()
    results.compare("the best accuracy that eight workers find", result, best)
    return f"eight workers find the best of {len(replay.trials)} recorded training runs"
