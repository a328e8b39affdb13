"""Checks of a learner's successive halving: what it trains, which trials continue, what it finds.

A check calls the function with planted accuracies and compares its calls of `train` with the
rounds of successive halving.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from course.lab import results
from labs.search.halving import FACTOR, Halving, Replay, successive_halving

# Trial 4 leads after epoch 1, trial 2 after epoch 3, and trial 7 at the end. Trial 0, which is
# dropped after epoch 1, would have ended best.
FIRST = (0.22, 0.10, 0.40, 0.15, 0.50, 0.12, 0.20, 0.45, 0.18)
THIRD = (0.30, 0.20, 0.60, 0.25, 0.55, 0.22, 0.35, 0.52, 0.28)
FINAL = (0.95, 0.30, 0.61, 0.35, 0.58, 0.33, 0.70, 0.80, 0.40)


def planted_curves(factor: int = FACTOR) -> np.ndarray:
    """Return the accuracies of 9 trials after 6 epochs; with another factor, of 8 of them."""
    rows = (FIRST, FIRST, THIRD, THIRD, THIRD, FINAL)
    return np.array(rows).T[: 9 if factor == FACTOR else 8]


def check_rounds(function: Halving) -> str:
    """Check the trials that each round trains, and the result."""
    nine, eight = planted_curves(), planted_curves(2)
    _check(function, nine, range(9), (1, 3, 6), FACTOR)
    _check(function, nine, range(9), (1, 3), FACTOR)
    _check(function, eight, range(8), (1, 2, 3, 6), 2)  # 8, 4, 2 and 1 trials
    _check(function, eight, range(8), (1, 3, 6), 8)  # 8, 1 and 1: never none
    _check(function, eight, range(8), (1, 3), 5)  # 8 and 1: shares are rounded down
    # Accuracies that rise, fall or do neither, of some trials in any order.
    rng = np.random.default_rng(0)
    for count in (7, 16, 19):
        curves = rng.uniform(0, 1, (25, 8))
        _check(function, curves, rng.permutation(25)[:count].tolist(), (2, 4, 5, 8), 2)
    _check(function, np.full((9, 6), 0.1), range(9), (1, 3, 6), FACTOR)  # all guess one of ten
    return "each round trains the trials that should continue, and the best one is returned"


def _check(
    function: Halving,
    curves: np.ndarray,
    trials: Sequence[int],
    epochs: tuple[int, ...],
    factor: int,
) -> None:
    replay, trials = Replay(curves), [*trials]
    result: object = None
    error = None
    try:
        result = results.call(function, trials, replay.train, epochs, factor)
    except (IndexError, ValueError) as caught:  # of an empty list: its round explains it better
        error = caught
    where = f"{len(trials)} trials, {epochs=}, {factor=}"
    expected = trials
    if error and not replay.calls:
        raise error
    _check_first_round(replay, trials, epochs, where)
    for before, epoch in pairwise(epochs):
        kept = max(1, len(expected) // factor)
        ranked = sorted(expected, key=lambda trial: -replay.curves[trial, before - 1])
        continued = {trial for trial, until in replay.calls if until == epoch}
        _check_kept(replay, ranked, kept, continued, before, where)
        expected = sorted(continued)
    if error:
        raise error
    last = replay.curves[:, epochs[-1] - 1]
    best = max(expected, key=lambda trial: (last[trial], trial == result))
    assert not isinstance(result, list | tuple | dict), (
        f"{where}: it returns {result!r}, expected the number of one trial, {best}"
    )
    is_trial = result in trials
    reason = "compare the accuracies of the last epoch" if is_trial else "return a trial's number"
    assert result == best, (
        f"{where}: it returns {result}, expected trial {best}, the best of the last round: {reason}"
    )


def _check_first_round(
    replay: Replay, trials: list[int], epochs: tuple[int, ...], where: str
) -> None:
    """Check that all trials are trained until the first epoch before any goes further."""
    first, count = epochs[0], len(trials)
    assert replay.calls, f"{where}: it has not called train(trial, epoch)"
    later = [until for _, until in replay.calls[:count] if until != first]
    assert not later, (
        f"{where}: it trains until epoch {later[0]} in the first round, expected {first}. This "
        f"looks at later accuracies in advance, and pays for them"
    )
    unknown = {trial for trial, _ in replay.calls} - {*trials}
    assert not unknown, (
        f"{where}: it trains {min(unknown)}, but the trials are {trials}: use the elements of "
        f"`trials`, not their positions"
    )
    trained = {trial for trial, _ in replay.calls[:count]}
    assert len(trained) == count, (
        f"{where}: the first round trains {len(trained)} of {count} trials; all need it"
    )
    wrong = {until for _, until in replay.calls} - {*epochs}
    assert not wrong, f"{where}: it trains until epoch {min(wrong)}, which is not one of {epochs}"


def _check_kept(
    replay: Replay, ranked: list[int], kept: int, continued: set[int], before: int, where: str
) -> None:
    """Check that the best trials of a round, and no others, are trained further."""
    accuracy = replay.curves[:, before - 1]
    lowest = accuracy[ranked[kept - 1]]  # of the kept; of equal ones, any may continue
    if len(continued) == kept and (accuracy[[*continued]] >= lowest).all():
        return
    round_ = f"{where}: after epoch {before},"
    assert continued, f"{round_} no trial is left to train, expected {kept}: keep at least one"
    assert len(continued) <= kept, (
        f"{round_} {len(continued)} trials continue instead of {kept}: this spends more epochs "
        f"than the budget"
    )
    assert len(continued) == kept, f"{round_} {len(continued)} trials continue instead of {kept}"
    assert continued != {*ranked[-kept:]}, (
        f"{round_} the worst trials continue: sort in the other direction"
    )
    assert ranked[0] in continued, (
        f"{round_} its best trial, {ranked[0]}, is dropped, and {sorted(continued)} continue: "
        f"compare the accuracies after epoch {before}"
    )
    raise AssertionError(
        f"{round_} trials {sorted(continued)} continue, expected {sorted(ranked[:kept])}: compare "
        f"the accuracies after epoch {before}"
    )


def check_recorded(function: Halving) -> str:
    """Check the search of the recorded training runs: its result and its budget."""
    replay = Replay.of_grid()
    found = replay.accuracy(function(replay.trials, replay.train))
    best = replay.curves[:, -1].max()
    reference = Replay(replay.curves)
    successive_halving(reference.trials, reference.train)
    budget = reference.epochs
    assert replay.epochs == budget, (
        f"{len(replay.trials)} recorded training runs: {replay.epochs} epochs, expected {budget}"
    )
    assert found == best, f"it finds an accuracy of {found:.3f}, and the best is {best:.3f}"
    return f"with {budget} epochs it finds the best of {len(replay.trials)} recorded training runs"
