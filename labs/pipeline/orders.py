"""Orders of passes that learners write: find what is wrong with one, and check 1F1B's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from labs.pipeline.passes import BACKWARD, FORWARD
from labs.pipeline.schedules import (
    DURATIONS,
    Order,
    Pass,
    bubble_share,
    idle_share,
    schedule_order,
    simulate,
)

# Returns the passes of one stage: (stage, stages, micro-batches) -> [("F", 0), ("B", 0), ...]
Function = Callable[[int, int, int], list[tuple[str, int]]]
# Stages and micro-batches: more of these, fewer, as many, and no multiple.
CASES = ((4, 8), (2, 4), (1, 3), (4, 2), (3, 7), (5, 3), (3, 1), (6, 6), (1, 1))
KINDS = (FORWARD, BACKWARD)


class Problem(NamedTuple):
    """What is wrong with an order, and the first pass that shows it."""

    message: str
    stage: int
    position: int  # in the stage's order; its end if a pass is missing
    wrong: Pass
    runs: bool = False  # whether the pass could run: then it takes memory or time


def one_f_one_b(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Return the passes of one stage in the order of 1F1B: the solution of the lab's exercise."""
    passes = schedule_order("1f1b", stages, micro_batches)[stage]
    return [(pass_.kind, pass_.micro_batch) for pass_ in passes]


def collect_order(function: Function, stages: int, micro_batches: int) -> Order:
    """Call a learner's function for every stage.

    Raises:
        AssertionError: a result that is no list of pairs.
    """
    order: Order = []
    for stage in range(stages):
        passes = function(stage, stages, micro_batches)
        assert isinstance(passes, list | tuple), (
            f"stage {stage} of {stages}: it returned {passes!r}, expected a list of passes such as "
            f'("F", 0)'
        )
        for item in passes:
            assert isinstance(item, list | tuple) and len(item) == 2, (
                f'stage {stage} of {stages}: {item!r} in its list, expected pairs such as ("F", 0)'
            )
        order.append([Pass(kind, stage, number) for kind, number in passes])
    return order


def find_impossible(order: Order, micro_batches: int) -> Problem | None:
    """Find a pass that cannot run: unknown, repeated, too early, missing, or in a deadlock."""
    for stage, passes in enumerate(order):
        done: set[Pass] = set()
        for position, pass_ in enumerate(passes):
            if message := _refusal(pass_, done, micro_batches):
                return Problem(f"stage {stage}: {message}", stage, position, pass_)
            done.add(pass_)
    for stage, passes in enumerate(order):
        for number in range(micro_batches):
            for kind in KINDS:
                if (missing := Pass(kind, stage, number)) not in passes:
                    message = (
                        f"stage {stage} of {len(order)} has no {_name(missing)}: expected one "
                        f"forward and one backward pass of each of {micro_batches} micro-batches"
                    )
                    return Problem(message, stage, len(passes), missing)
    return _find_deadlock(order)


def _refusal(pass_: Pass, done: set[Pass], micro_batches: int) -> str:
    """Explain why a stage cannot run a pass after those that are done; "" if it can."""
    kind, stage, number = pass_
    if kind not in KINDS:
        return f'{_name(pass_)} is no pass: expected "F" or "B", and the micro-batch\'s number'
    if number not in range(micro_batches):
        hint = "no forward pass is left"
        if all(other.kind == FORWARD for other in done):
            hint = "there are fewer micro-batches than stages"
        return (
            f"{_name(pass_)} does not exist: {micro_batches} micro-batches have the numbers 0 to "
            f"{micro_batches - 1}. What does your function do if {hint}?"
        )
    if pass_ in done:
        return f"{_name(pass_)} is in the list twice"
    if kind == BACKWARD and Pass(FORWARD, stage, number) not in done:
        return (
            f"{_name(pass_)} is listed before {_name(Pass(FORWARD, stage, number))}, but a "
            f"backward pass needs the activations of its forward pass"
        )
    return ""


def _find_deadlock(order: Order) -> Problem | None:
    """Find the first pass for which a stage would wait forever."""
    counts = simulate(order, lambda _: 1.0)["stage"].value_counts()
    stuck = {
        stage: passes[counts.get(stage, 0)]
        for stage, passes in enumerate(order)
        if counts.get(stage, 0) < len(passes)
    }
    if not stuck:
        return None
    waits = []
    for stage, (kind, _, number) in stuck.items():
        needed = Pass(kind, stage - 1 if kind == FORWARD else stage + 1, number)
        waits.append(f"stage {stage} waits for {_name(needed)} of stage {needed.stage}")
    stage, pass_ = next(iter(stuck.items()))
    message = f"deadlock: {', '.join(waits)}"
    return Problem(message, stage, int(counts.get(stage, 0)), pass_)


def find_wasteful(order: Order, micro_batches: int) -> Problem | None:
    """Find a pass with which an order stores more than 1F1B, or else takes longer."""
    stages = len(order)
    for stage, passes in enumerate(order):
        limit, stored = min(stages - stage, micro_batches), 0
        for position, pass_ in enumerate(passes):
            stored += 1 if pass_.kind == FORWARD else -1
            if stored > limit:
                message = (
                    f"stage {stage} of {stages}: at {_name(pass_)} it stores the activations of "
                    f"{stored} micro-batches, expected at most {limit}"
                )
                if all(other.kind == FORWARD for other in passes[:micro_batches]):
                    message += ". All forward passes first: that is GPipe's order"
                return Problem(message, stage, position, pass_, runs=True)
    table, expected = _ideal(order), _ideal(schedule_order("1f1b", stages, micro_batches))
    idle, ideal = idle_share(table), bubble_share(stages, micro_batches)
    if idle <= ideal + 1e-9:
        return None
    # Both are sorted by rank and time. What is late may wait for another stage's different order.
    late = table["begin_ms"] - expected["begin_ms"] > 1e-9
    differs = (table[["kind", "micro_batch"]] != expected[["kind", "micro_batch"]]).any(axis=1)
    row = expected[late & differs]["begin_ms"].idxmin()
    stage, position = int(table["rank"][row]), int(table["rank"][:row].eq(table["rank"][row]).sum())
    pass_ = order[stage][position]
    stored = sum(1 if other.kind == FORWARD else -1 for other in order[stage][:position])
    limit = min(stages - stage, micro_batches)
    message = (
        f"{idle:.0%} of the time is idle, expected {ideal:.0%}: stage {stage} of {stages} waits "
        f"for {_name(pass_)} while it stores {stored} of at most {limit} micro-batches. How many "
        f"forward passes could it run first?"
    )
    return Problem(message, stage, position, pass_, runs=True)


def find_problem(order: Order, micro_batches: int) -> Problem | None:
    """Find the first thing that is wrong with an order, compared with 1F1B."""
    return find_impossible(order, micro_batches) or find_wasteful(order, micro_batches)


def check_possible(function: Function) -> str:
    """Check that every pass of every micro-batch can run."""
    _check(function, find_impossible)
    return f"every stage runs all passes, tried with {len(CASES)} sizes of a pipeline"


def check_economy(function: Function) -> str:
    """Check that an order stores no more activations than 1F1B, and takes no longer."""
    _check(function, find_wasteful)
    stages, count = CASES[0]
    share = bubble_share(stages, count)
    return f"at most {stages} of {count} micro-batches are stored, and {share:.0%} of time is idle"


def _check(function: Function, find: Callable[[Order, int], Problem | None]) -> None:
    for stages, micro_batches in CASES:
        problem = find(collect_order(function, stages, micro_batches), micro_batches)
        assert not problem, f"{stages} stages, {micro_batches} micro-batches: {problem.message}"


def _ideal(order: Order) -> pd.DataFrame:
    """Simulate an order in which a backward pass takes twice as long as a forward pass."""
    return simulate(order, lambda pass_: DURATIONS[pass_.kind])


def _name(pass_: Pass) -> str:
    kind = f'"{pass_.kind}"' if isinstance(pass_.kind, str) else pass_.kind
    return f"({kind}, {pass_.micro_batch})"
