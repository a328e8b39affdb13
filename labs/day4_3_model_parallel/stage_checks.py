"""How it is seen that a network is a pipeline: who keeps which stages, and works in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from course.checks.config_effects import model_size
from course.runs.run import Run
from labs.day4_2_fsdp.rank_checks import EQUAL, NEARLY, of_ranks, seen_by_ranks

if TYPE_CHECKING:
    from labs.day4_3_model_parallel.schedules import Order, Pass

WORDS = {
    "F": "the forward pass",
    "B": "the backward pass",
    "I": "the gradients of the inputs",
    "W": "the gradients of the weights",
}


def _network(run: Run) -> int:
    """How many numbers the whole network has; its last layer lies on the last rank."""
    classes = seen_by_ranks(run)[-1]["classes"] or 1
    return model_size(run.config.model, classes, run.config.image_px)


def _order_of(run: Run) -> Order:
    from labs.day4_3_model_parallel import schedules

    return schedules.measured_order(run)


def _micro_batches_of(run: Run) -> int:
    from labs.day4_3_model_parallel import schedules

    return schedules.micro_batch_count(run)


def _numbers(passes: list[Pass]) -> list[int]:
    return sorted({each.stage for each in passes})


def _stage_faults(run: Run, against: Run) -> Iterator[str]:
    if not all(any(seen.get("actions", {}).values()) for seen in seen_by_ranks(run)):
        yield (
            "no stage did anything: each rank's part goes into a `PipelineStage(…)`, and those "
            "into a schedule"
        )
        return
    yield from _number_faults(run)
    yield from _part_faults(run)
    due = _micro_batches_of(run)
    for rank, passes in enumerate(_order_of(run)):
        stages, forward = len(_numbers(passes)), sum(each.kind == "F" for each in passes)
        if forward != due * stages:
            yield (
                f"a stage of rank {rank} worked on {forward // stages} micro-batches, and {due} "
                f"are due: batch_size={run.config.batch_size}, micro_batch={run.config.micro_batch}"
            )
    yield from _training_faults(run, against)


def _number_faults(run: Run) -> Iterator[str]:
    from labs.day4_3_model_parallel.pipelines import stage_numbers

    ranks, pipeline = run.record.gpus, run.config.pipeline
    for rank, passes in enumerate(_order_of(run)):
        due, count = stage_numbers(pipeline, rank, ranks)
        if (found := _numbers(passes)) != due:
            yield (
                f"rank {rank} worked as stages {found}, and {pipeline} of {ranks} ranks has "
                f"{due} there, of {count}: `pipelines.stage_numbers(…)`"
            )
            return


def _part_faults(run: Run) -> Iterator[str]:
    """Weights that several ranks have, or none."""
    every, kept = _network(run), [seen["parameters"] for seen in seen_by_ranks(run)]
    for rank, found in enumerate(kept):
        if found == every:
            yield (
                f"rank {rank}'s optimizer holds all {every:,} numbers of the network, and most of "
                f"them never get a gradient there: `net` is to be this rank's own parts alone, "
                f"before `optimizers.create(…)`"
            )
            return
    if sum(kept) != every:
        yield (
            f"the ranks' optimizers hold {' + '.join(f'{each:,}' for each in kept)} numbers, and "
            f"the network has {every:,}: each part belongs to one rank, and all of a rank's parts "
            f"to its `net`"
        )


def _training_faults(run: Run, against: Run) -> Iterator[str]:
    """Other gradients, or other losses, than one process has of the same images."""
    norms = [seen["gradient_norm"] for seen in seen_by_ranks(run)]
    norm, due = math.hypot(*norms), against.record.evidence["gradient_norm"]
    first, before = (each.steps["loss"].iloc[0] for each in (run, against))
    passes = _micro_batches_of(run)
    if math.isclose(norm, passes * due, rel_tol=0.1):
        yield (
            f"gradients are {passes} times those of one process: each micro-batch's loss is a mean "
            f"over its own images, so what {passes} of them add up is to be divided. PyTorch does "
            f"so unless it is told scale_grads=False, and the loss is no sum"
        )
    elif math.isclose(first, passes * before, rel_tol=EQUAL):
        yield (
            f"the loss is {passes} times that of one process: the mean over micro-batches, which "
            f"are of one size, is the mean over the batch"
        )
    elif not math.isclose(first, before, rel_tol=EQUAL):
        yield (
            f"the first loss is {first:.4f}, and {before:.4f} in one process, of the same images "
            f"and weights: parts follow each other in their order, and each micro-batch's labels "
            f"are those of its images"
        )
    elif not math.isclose(norm, due, rel_tol=10 * NEARLY):
        yield f"the first gradients of all ranks together are {norm / due:.3f} times one process's"


def _stage_seen(run: Run) -> str:
    every, kept = _network(run), [seen["parameters"] for seen in seen_by_ranks(run)]
    return (
        f"{' + '.join(f'{each:,}' for each in kept)} = {every:,} numbers, each on one rank; "
        f"{_micro_batches_of(run)} micro-batches through {len(kept)} stages; losses and "
        f"gradients of one process"
    )


def _schedule_faults(run: Run, against: Run) -> Iterator[str]:
    yield from _order_faults(run)
    yield from _stage_faults(run, against)


def _order_faults(run: Run) -> Iterator[str]:
    """Passes in another order than the config names."""
    from labs.day4_3_model_parallel import schedules
    from labs.day4_3_model_parallel.pipelines import SCHEDULES

    if not all(any(seen.get("actions", {}).values()) for seen in seen_by_ranks(run)):
        return
    yield from _number_faults(run)
    cfg, found = run.config, _order_of(run)
    given = run.record.gpus, _micro_batches_of(run)
    due = schedules.schedule_order(cfg.pipeline, *given)
    if found == due:
        return
    alike = [name for name, (_, each) in SCHEDULES.items() if each == SCHEDULES[cfg.pipeline][1]]
    if others := [name for name in alike if schedules.schedule_order(name, *given) == found]:
        yield (
            f"the ranks worked in the order of {others[0]}, and the config asks for "
            f"{cfg.pipeline}: `pipelines.create_schedule(…)`"
        )
        return
    for rank, (own, asked) in enumerate(zip(found, due)):
        for at, (one, other) in enumerate(zip(own, asked), 1):
            if one != other:
                yield (
                    f"rank {rank} did {_words(one)} as its pass number {at}, and {cfg.pipeline} "
                    f"has {_words(other)} there"
                )
                return


def _words(one: Pass) -> str:
    return f"{WORDS[one.kind]} of micro-batch {one.micro_batch} in stage {one.stage}"


def _schedule_seen(run: Run) -> str:
    asked = _order_of(run)
    first = " ".join(f"{each.stage}{each.kind}{each.micro_batch}" for each in asked[0][:8])
    return f"{len(asked[0])} passes a rank in {run.config.pipeline}'s order; rank 0: {first} …"


PIPED: dict[str, Any] = {
    "rung": "pipeline",
    "tolerance": EQUAL,
    "micro_batch": 2,
}
CHECKS = {
    "day4.stages": of_ranks(
        title="each rank keeps a part of the network, and passes on what it gives",
        todo=33,
        seen=_stage_seen,
        word="PipelineStage",
        faults=_stage_faults,
        pipeline="gpipe",
        **PIPED,
    ),
    "day4.schedule": of_ranks(
        title="ranks work in the order that the config names",
        todo=34,
        seen=_schedule_seen,
        word="create_schedule",
        faults=_schedule_faults,
        pipeline="zero_bubble",
        **PIPED,
    ),
}
