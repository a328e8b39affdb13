"""How it is seen that a network is a pipeline: who keeps which stages, and works in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from course.checks.rank_checks import of_ranks, seen_by_ranks
from course.runs.run import Run

if TYPE_CHECKING:
    from labs.day4_3_model_parallel.schedules import Order


def _order_of(run: Run) -> Order:
    from labs.day4_3_model_parallel import schedules

    return schedules.measured_order(run)


def _micro_batches_of(run: Run) -> int:
    from labs.day4_3_model_parallel import schedules

    return schedules.micro_batch_count(run)


def _stage_seen(run: Run) -> str:
    kept = [seen["parameters"] for seen in seen_by_ranks(run)]
    return (
        f"{' + '.join(f'{each:,}' for each in kept)} = {sum(kept):,} numbers, each on one rank; "
        f"{_micro_batches_of(run)} micro-batches through {len(kept)} stages; losses and "
        f"gradients of one process"
    )


def _schedule_seen(run: Run) -> str:
    asked = _order_of(run)
    first = " ".join(f"{each.stage}{each.kind}{each.micro_batch}" for each in asked[0][:8])
    return f"{len(asked[0])} passes a rank in {run.config.pipeline}'s order; rank 0: {first} …"


PIPED: dict[str, Any] = {
    "rung": "pipeline",
    "small": {"save_weights": False},
    "micro_batch": 2,
}
CHECKS = {
    "day4.stages": of_ranks(
        title="each rank keeps a part of the network, and passes on what it gives",
        todo=33,
        configs=({"rung": "large"}, {"pipeline": "gpipe"}),
        seen=_stage_seen,
        word="PipelineStage",
        pipeline="gpipe",
        **PIPED,
    ),
    "day4.schedule": of_ranks(
        title="ranks work in the order that the config names",
        todo=34,
        configs=(
            {"pipeline": "gpipe"},
            {"pipeline": "zero_bubble"},
            {"pipeline": "1f1b", "ranks": 4},
        ),
        seen=_schedule_seen,
        word="create_schedule",
        pipeline="zero_bubble",
        **PIPED,
    ),
}
