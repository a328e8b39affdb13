"""Schedules of pipelines: the order of passes, an ideal step, and what recorded steps took.

The orders are those of PyTorch's schedules (torch.distributed.pipelining).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import pandas as pd

from course import Run
from course.lab import NOT_APPLICABLE
from labs._compat import get_schedule_ops
from labs.pipeline.passes import BACKWARD, FORWARD, INPUT, WEIGHT
from labs.pipeline.pipelines import SCHEDULES

COLUMNS = ["rank", "stage", "micro_batch", "kind", "begin_ms", "end_ms"]
# Durations in forward passes; backward computes gradients of inputs and of weights.
DURATIONS = {FORWARD: 1.0, BACKWARD: 2.0, INPUT: 1.0, WEIGHT: 1.0}


class Pass(NamedTuple):
    """One micro-batch in one stage; kind: F, B, or B's halves I (inputs) and W (weights)."""

    kind: str
    stage: int
    micro_batch: int


Order = list[list[Pass]]  # the passes of each rank


def schedule_order(pipeline: str, ranks: int, micro_batches: int) -> Order:
    """Return the passes of each rank in a step.

    Args:
        pipeline: the config's gpipe, 1f1b, interleaved or zero_bubble.

    Raises:
        ValueError: an unknown schedule, or a number of micro-batches that it cannot distribute.
    """
    if pipeline not in SCHEDULES:
        raise ValueError(f"pipeline={pipeline!r}: choose {' or '.join(SCHEDULES)}")
    if pipeline == "gpipe":
        return [_alternate(rank, micro_batches, ahead=micro_batches) for rank in range(ranks)]
    if pipeline == "1f1b":
        return [_alternate(rank, micro_batches, ahead=ranks - rank) for rank in range(ranks)]
    if micro_batches % ranks:
        raise ValueError(
            f"micro_batches={micro_batches}: {pipeline} needs a multiple of {ranks} ranks"
        )
    # PyTorch also creates orders for its own figures; only that of 1F1B is wrong.
    name, stages_per_rank = SCHEDULES[pipeline]
    name = name.removeprefix("Schedule")
    actions = get_schedule_ops(name, ranks, micro_batches, stages_per_rank)
    return [
        [
            Pass(action.computation_type.value, action.stage_index, action.microbatch_index)
            for action in of_rank
            if action is not None and action.computation_type.value in DURATIONS
        ]
        for of_rank in actions
    ]


def _alternate(stage: int, micro_batches: int, ahead: int) -> list[Pass]:
    """Return `ahead` forward passes, then backward and forward passes in turn."""
    ahead = min(ahead, micro_batches)
    passes = [Pass(FORWARD, stage, number) for number in range(ahead)]
    for number in range(micro_batches):
        passes.append(Pass(BACKWARD, stage, number))
        if ahead + number < micro_batches:
            passes.append(Pass(FORWARD, stage, ahead + number))
    return passes


def simulate(order: Order, seconds: Callable[[Pass], float]) -> pd.DataFrame:
    """Compute when each pass runs if messages take no time. Columns: COLUMNS.

    Of an order that ends in a deadlock, only the passes before it run.
    """
    stages = [pass_.stage for passes in order for pass_ in passes]
    last = max([len(order) - 1, *stages])
    ends: dict[Pass, float] = {}
    free_s, rows = [0.0] * len(order), []
    queues = [deque(passes) for passes in order]
    was_running = True
    while was_running:
        was_running = False
        for rank, queue in enumerate(queues):
            while queue and (ready_s := _ready_s(queue[0], ends, last)) is not None:
                was_running, pass_ = True, queue.popleft()
                begin_s = max(free_s[rank], ready_s)
                ends[pass_] = free_s[rank] = begin_s + seconds(pass_)
                times = (1e3 * begin_s, 1e3 * free_s[rank])
                rows.append((rank, pass_.stage, pass_.micro_batch, pass_.kind, *times))
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(["rank", "begin_ms", "end_ms"], ignore_index=True)


def _ready_s(pass_: Pass, ends: dict[Pass, float], last: int) -> float | None:
    """Return when a pass's input is available, or None if that is not known yet."""
    kind, stage, number = pass_
    if kind == FORWARD:
        return ends.get(Pass(FORWARD, stage - 1, number)) if stage else 0.0
    if kind == WEIGHT:
        return ends.get(Pass(INPUT, stage, number))
    if stage == last:
        return ends.get(Pass(FORWARD, last, number))
    backward_s = ends.get(Pass(BACKWARD, stage + 1, number))
    return ends.get(Pass(INPUT, stage + 1, number)) if backward_s is None else backward_s


def ideal_step(
    pipeline: str, ranks: int, micro_batches: int, *, forward_ms: float | None = None
) -> pd.DataFrame:
    """Simulate a step with equal stages and free messages. Columns: COLUMNS.

    Args:
        forward_ms: of a micro-batch through all stages of a rank; None: it is the unit of time,
            and `attrs` has is_unitless.
    """
    forward_s = (forward_ms or 1.0) / 1e3 / SCHEDULES[pipeline][1]

    def seconds(pass_: Pass) -> float:
        duration = DURATIONS[pass_.kind]
        if pass_.stage == 0 and pass_.kind in (INPUT, WEIGHT):
            # The first stage sends no gradient, so PyTorch leaves its backward pass to W.
            duration = 0.0 if pass_.kind == INPUT else DURATIONS[BACKWARD]
        return forward_s * duration

    table = simulate(schedule_order(pipeline, ranks, micro_batches), seconds)
    table.attrs["is_unitless"] = forward_ms is None
    return table


def bubble_share(ranks: int, micro_batches: int) -> float:
    """Return the idle share of GPipe and 1F1B (Huang et al. 2018, arXiv:1811.06965, 2.3)."""
    return (ranks - 1) / (micro_batches + ranks - 1)


def idle_share(table: pd.DataFrame) -> float:
    """Return the share of a step (a table of COLUMNS) in which ranks compute no pass."""
    span_ms = table["end_ms"].max() - table["begin_ms"].min()
    busy_ms = (table["end_ms"] - table["begin_ms"]).sum()
    return float(1 - busy_ms / (span_ms * table["rank"].nunique()))


def _recorded_passes(run: Run) -> list[dict[str, list]]:
    """Return the passes of each rank's last steps, by step number."""
    passes = [run.evidence(rank).actions for rank in range(len(run.ranks))]
    if not passes or NOT_APPLICABLE in passes:
        raise ValueError(
            f"{run} has no pipeline stages. Launch it with pipeline='1f1b' and gpus=2 or more."
        )
    return passes


def measured_step(run: Run) -> pd.DataFrame:
    """Return the passes of a run's shortest recorded step. Columns: COLUMNS.

    Raises:
        ValueError: the run is no pipeline.
    """
    steps = []
    for number in _recorded_passes(run)[0]:
        rows = [
            [rank, stage, micro_batch, kind, 1e3 * begin, 1e3 * end]
            for rank, passes in enumerate(_recorded_passes(run))
            for kind, stage, micro_batch, begin, end, *_ in passes[number]
        ]
        table = pd.DataFrame(rows, columns=COLUMNS)
        table[["begin_ms", "end_ms"]] -= table["begin_ms"].min()
        steps.append(table)
    shortest = min(steps, key=lambda table: table["end_ms"].max())
    return shortest.sort_values(["rank", "begin_ms", "end_ms"], ignore_index=True)


def measured_order(run: Run) -> Order:
    """Return the passes of each rank in a run's last step."""
    last = [passes[max(passes, key=int)] for passes in _recorded_passes(run)]
    return [[Pass(*row[:3]) for row in sorted(rows, key=lambda row: row[3])] for rows in last]


def micro_batch_count(run: Run) -> int:
    """Return the number of micro-batches per step."""
    return run.config.batch_size // (run.config.micro_batch or run.config.batch_size)


def ideal_step_of(run: Run) -> pd.DataFrame:
    """Simulate a run's schedule with equal stages that do the same work. Columns: COLUMNS."""
    schedule = run.config.pipeline, run.record.gpus, micro_batch_count(run)
    work_ms, unit_ms = (
        (table["end_ms"] - table["begin_ms"]).sum()
        for table in (measured_step(run), ideal_step(*schedule))
    )
    return ideal_step(*schedule, forward_ms=work_ms / unit_ms)
