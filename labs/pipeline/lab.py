"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from typing import Any

from course import Run
from course.lab import (
    NOT_APPLICABLE,
    Fact,
    Function,
    FunctionCheck,
    Lab,
    NotApplicable,
    Rank,
    Recording,
    configs,
    facts,
)
from labs.pipeline import mechanism
from labs.pipeline.configs import recorded_configs


def _describe_schedule(run: Run) -> str:
    from labs.pipeline import schedules

    order = schedules.measured_order(run)[0]
    first = " ".join(f"{item.stage}{item.kind}{item.micro_batch}" for item in order[:8])
    return f"{len(order)} passes per rank, in {run.config.pipeline}'s order; rank 0: {first} …"


def _one_f_one_b() -> FunctionCheck:
    from labs.pipeline import orders

    return FunctionCheck(orders.one_f_one_b, orders.check_possible, orders.check_economy)


def _backward_pass() -> FunctionCheck:
    from labs.pipeline import by_hand

    solution = by_hand.backward_pass
    return FunctionCheck(solution, by_hand.check_gradients, by_hand.check_handles)


def _stages(rank: Rank) -> str | NotApplicable:
    stages = rank.notes.stages
    return NOT_APPLICABLE if stages is NOT_APPLICABLE else ", ".join(stages) or NOT_APPLICABLE


def _schedule(rank: Rank) -> str | NotApplicable:
    return NOT_APPLICABLE if rank.notes.schedule == "" else rank.notes.schedule


STAGES = (
    Fact("list of this rank's stages", _stages,
         "take the numbers and their count from `pipelines.stage_numbers(…)`, with run.rank"),
    Fact("schedule", _schedule,
         "let cfg.pipeline choose it: `pipelines.create_schedule(…)`"),
    Fact("scale_grads of the schedule", lambda rank: rank.notes.scale_grads,
         "criterion returns a mean, so the gradients of micro-batches must be averaged, too: leave "
         "scale_grads out"),
    Fact("number of forward passes in a step",
         facts.if_complete(lambda rank: sum(text[0] == "F" for text in mechanism.actions(rank))),
         "each stage has one per micro-batch: the schedule's second argument is micro_batches"),
    Fact("loss of the last stage", lambda rank: "missing" if "losses" in rank.error else "computed",
         "pass loss_fn=criterion to the schedule, `ScheduleGPipe(…)`"),
    Fact("number of weights that all ranks train",
         facts.if_complete(lambda rank: facts.updated(rank)["number of weights in the optimizers"]),
         "from here on, `net` has only this rank's parts: net = nn.ModuleList(…)"),
    Fact("layout of the convolutions' inputs", facts.kinds("input_layouts"),
         "make each part a `pipelines.Stage(…)`, which also sends contiguous tensors"),
)  # fmt: skip
PIPED: dict[str, Any] = {"rung": "pipeline", "causes": STAGES}
EXERCISES = {
    "pipeline_stages": configs.of_ranks(
        title="each rank stores a part of the network, and sends on its output",
        configs=(
            {"rung": "large"},
            {"pipeline": "gpipe"},
            # The batch in one piece.
            {
                "pipeline": "gpipe",
                "micro_batch": 0,
                "batch_size": 12,
                "label_smoothing": 0.1,
                "precision": "bf16",
            },
        ),
        shows={"weights that the last rank stores": "parameters"},
        changes={"pipeline": "gpipe", "micro_batch": 2},
        **PIPED,
    ),
    "pipeline_schedule": configs.of_ranks(
        title="ranks run their passes in the order of the config's schedule",
        configs=(
            {"pipeline": "gpipe"},
            {"pipeline": "zero_bubble", "label_smoothing": 0.1},
            {"pipeline": "1f1b", "ranks": 4, "micro_batch": 1},
            {"pipeline": "interleaved", "batch_size": 12},
        ),
        describe=_describe_schedule,
        changes={"pipeline": "zero_bubble", "micro_batch": 2},
        **PIPED,
    ),
}

LAB = Lab(
    title="pipeline parallelism",
    minutes=80,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    functions={
        "pipeline.1f1b": Function("the order of 1F1B", _one_f_one_b),
        "pipeline.backward": Function("a stage's backward pass", _backward_pass),
    },
    recordings=(Recording("parallel", several=recorded_configs),),
    jobs="4, of 2 processes",
    prepare="nothing",
    stuck="fewer micro-batches than stages; `net` is this rank's part only",
)
