"""In which order the ranks of a pipeline work, and what they would wait if nothing else cost time.

The orders are those of PyTorch's schedules (torch.distributed.pipelining). The share in which
GPipe's ranks and 1F1B's are idle, (p - 1) / (m + p - 1) for p ranks and m micro-batches, is that of
Huang et al. 2018 (arXiv:1811.06965), section 2.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from course.training.evidence.actions import BACKWARD, FORWARD, INPUT, WEIGHT
from course.training.ranks.pipelines import SCHEDULES

if TYPE_CHECKING:
    import pandas as pd

COLUMNS = ["rank", "stage", "micro_batch", "what", "begin_ms", "end_ms"]
# Of a pass, in forward passes: backward is two, of its inputs and of its weights.
EQUAL = {FORWARD: 1.0, BACKWARD: 2.0, INPUT: 1.0, WEIGHT: 1.0}


class Pass(NamedTuple):
    """One micro-batch on its way through one stage: forward, or a part of backward."""

    what: str  # F forward, B backward; in two halves, I of the inputs and W of the weights
    stage: int
    micro_batch: int


Order = list[list[Pass]]  # what each rank does, one after the other


def order(pipeline: str, ranks: int, micro_batches: int) -> Order:
    """What each rank does in a step.

    Args:
        pipeline: gpipe, 1f1b, interleaved or zero_bubble, as the config has it.

    Raises:
        ValueError: a schedule that is none of these, or that cannot deal so many out.
    """
    if pipeline not in SCHEDULES:
        raise ValueError(f"pipeline={pipeline!r}: choose {' or '.join(SCHEDULES)}")
    if pipeline == "gpipe":
        return [_filled(rank, micro_batches, ahead=micro_batches) for rank in range(ranks)]
    if pipeline == "1f1b":
        return [_filled(rank, micro_batches, ahead=ranks - rank) for rank in range(ranks)]
    if micro_batches % ranks:
        raise ValueError(
            f"{pipeline} deals micro-batches out in rounds of {ranks}: {micro_batches} is no "
            f"multiple of it"
        )
    # PyTorch makes orders for a picture of its own, too; only its one of 1F1B has a fault.
    from torch.distributed.pipelining import _schedule_visualizer as visualizer

    name, each = SCHEDULES[pipeline]
    found = visualizer.get_schedule_ops(name.removeprefix("Schedule"), ranks, micro_batches, each)
    passes = [[each for each in of_rank if each is not None] for of_rank in found]
    return [
        [
            Pass(each.computation_type.value, each.stage_index, each.microbatch_index)
            for each in of_rank
            if each.computation_type.value in EQUAL
        ]
        for of_rank in passes
    ]


def _filled(stage: int, micro_batches: int, ahead: int) -> list[Pass]:
    """So many forward passes first; then, as long as there are any, one for each backward."""
    ahead, found = min(ahead, micro_batches), []
    found += [Pass(FORWARD, stage, number) for number in range(ahead)]
    for number in range(micro_batches):
        found.append(Pass(BACKWARD, stage, number))
        if ahead + number < micro_batches:
            found.append(Pass(FORWARD, stage, ahead + number))
    return found


def simulate(asked: Order, seconds: Callable[[Pass], float]) -> pd.DataFrame:
    """When each pass happens, on as many processors as ranks, if sending takes no time.

    A pass begins once its rank is free, and what it needs is there. Columns: COLUMNS.

    Raises:
        ValueError: the ranks wait for each other for ever.
    """
    import pandas as pd

    last = max(each.stage for of_rank in asked for each in of_rank)
    ends: dict[Pass, float] = {}
    free, done, rows = [0.0] * len(asked), [0] * len(asked), []
    while any(done[rank] < len(of_rank) for rank, of_rank in enumerate(asked)):
        before = sum(done)
        for rank, of_rank in enumerate(asked):
            while done[rank] < len(of_rank):
                each = of_rank[done[rank]]
                ready = _ready(each, ends, last)
                if ready is None:
                    break
                begin = max(free[rank], ready)
                ends[each] = free[rank] = begin + seconds(each)
                done[rank] += 1
                rows.append([rank, each.stage, each.micro_batch, each.what])
                rows[-1] += [1e3 * begin, 1e3 * free[rank]]
        if sum(done) == before:
            raise ValueError("each rank waits for another: that is no order")
    table = pd.DataFrame(rows, columns=COLUMNS)
    return table.sort_values(["rank", "begin_ms", "end_ms"], ignore_index=True)


def _ready(each: Pass, ends: dict[Pass, float], last: int) -> float | None:
    """When what a pass needs is there; None: that cannot be known yet."""
    if each.what == FORWARD:
        needs = [Pass(FORWARD, each.stage - 1, each.micro_batch)] if each.stage else []
        return _end(needs, ends)
    if each.what == WEIGHT:
        return _end([Pass(INPUT, each.stage, each.micro_batch)], ends)
    if each.stage == last:
        return _end([Pass(FORWARD, last, each.micro_batch)], ends)
    behind = [Pass(kind, each.stage + 1, each.micro_batch) for kind in (BACKWARD, INPUT)]
    return _end([next((one for one in behind if one in ends), behind[0])], ends)


def _end(needs: Sequence[Pass], ends: dict[Pass, float]) -> float | None:
    return None if any(one not in ends for one in needs) else max([0.0, *map(ends.get, needs)])


def ideal(
    pipeline: str, ranks: int, micro_batches: int, *, forward_ms: float | None = None
) -> pd.DataFrame:
    """A step in this order if all stages took the same time, and sending none. Columns: COLUMNS.

    Args:
        forward_ms: of a micro-batch through all stages of a rank, backward takes twice as long;
            None: it is the unit of time, and `attrs` says so.
    """
    table = simulate(order(pipeline, ranks, micro_batches), equal(pipeline, forward_ms or 1.0))
    table.attrs["is_unitless"] = forward_ms is None
    return table


def equal(pipeline: str, forward_ms: float) -> Callable[[Pass], float]:
    """Seconds of each pass where all stages take the same.

    The first stage sends no gradient on, so PyTorch leaves all of its backward pass to W.
    """
    each_s = forward_ms / 1e3 / SCHEDULES[pipeline][1]

    def seconds(one: Pass) -> float:
        if one.stage == 0 and one.what in (INPUT, WEIGHT):
            return each_s * (0 if one.what == INPUT else EQUAL[BACKWARD])
        return each_s * EQUAL[one.what]

    return seconds


def bubble(ranks: int, micro_batches: int) -> float:
    """The share of a step in which a rank has nothing to do, by the formula, for GPipe and 1F1B."""
    return (ranks - 1) / (micro_batches + ranks - 1)


def idle(table: pd.DataFrame) -> float:
    """The share of a step in which no pass runs, over all ranks; of a table with COLUMNS."""
    span = table["end_ms"].max() - table["begin_ms"].min()
    busy = (table["end_ms"] - table["begin_ms"]).sum()
    return float(1 - busy / (span * table["rank"].nunique()))


def in_flight(pipeline: str, ranks: int, micro_batches: int) -> list[float]:
    """Of each rank, how many micro-batches it holds at most, of whose activations backward needs.

    A rank with two stages has half of its share in each.
    """
    return [_held(of_rank) for of_rank in order(pipeline, ranks, micro_batches)]


def _held(passes: Sequence[Pass]) -> float:
    held, most = 0, 0
    for each in passes:
        held += {FORWARD: 1, INPUT: 0}.get(each.what, -1)
        most = max(most, held)
    return most / len({each.stage for each in passes})
