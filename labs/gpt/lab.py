"""This lab's entry: what the course lists, checks and records for it."""

from __future__ import annotations

from collections.abc import Iterator

from course import Config, Run, rung
from course.lab import Exercise, Fact, Lab, Recording, expect, facts

RUNGS = ("gpt", "gpt_half", "gpt_attention", "gpt_compile", "gpt_vocabulary", "gpt_fused")


def _on_several(gpus: int) -> Iterator[tuple[Config, int]]:
    """Yield the fastest rung on some of the GPUs and on all, with a batch that grows with them."""
    for count in (2, 4, 8):
        if count <= gpus:
            for batch in (16, 64):
                yield rung("gpt_fused", batch_size=batch * count), count


def _describe_attention(run: Run) -> str:
    operators = run.evidence(0).attention
    expect(
        operators,
        "no block's attention was one operator in the first step: with cfg.attention == "
        '"sdpa", call F.scaled_dot_product_attention',
    )
    return "; ".join(f"{count} calls of {name}" for name, count in operators.items())


PASSES = (
    Fact("number of micro-batches", facts.if_complete(lambda rank: len(rank.evidence.passes)),
         "each has cfg.micro_batch sequences, the last one maybe fewer; with 0, there is one"),
    Fact("factors of the losses of the micro-batches",
         facts.if_complete(lambda rank: [round(factor, 4) for _, factor in rank.evidence.passes]),
         "each loss counts by its share of this rank's sequences, `len(x) / len(inputs)`",
         "micro-batch"),
)  # fmt: skip
EXERCISES = {
    "sdpa": Exercise(
        title="one operator computes the attention",
        rung="gpt_attention",
        against="gpt_half",
        configs=({"rung": "gpt_half"}, {}),
        facts=(
            Fact(
                "the use of a fused operator for attention",
                lambda rank: bool(rank.evidence.attention),
                'call F.scaled_dot_product_attention only if cfg.attention == "sdpa"',
            ),
        ),
        describe=_describe_attention,
        on_cpu="a CPU's step mostly computes the logits of the vocabulary",
    ),
    "padded_vocabulary": Exercise(
        title="the table of tokens has a multiple of 64 rows",
        rung="gpt_vocabulary",
        shows={"weights": "parameters"},
        against="gpt_compile",
        configs=({"rung": "gpt_compile"}, {}, {"vocabulary": 50305, "vocabulary_multiple": 128}),
        small={"compile": ""},
        on_cpu="only a GPU's Tensor Cores compute in tiles of this size",
        faster=False,
    ),
    "micro_batches": Exercise(
        title="a batch in parts trains like the full batch",
        rung="gpt",
        against="gpt",
        # Untimed, so a few steps are enough: in fp32, they are slow.
        changes={"micro_batch": 3, "epochs": 1, "steps": 16, "warmup_steps": 2, "val_steps": 1},
        shows={"tokens and factor of the loss of each micro-batch": "passes"},
        configs=(
            {"micro_batch": 0},
            {"micro_batch": 3},  # the last one has two sequences
            {"micro_batch": 2, "batch_size": 12, "ranks": 2},
        ),
        causes=PASSES,
        timed=False,
    ),
}

LAB = Lab(
    title="the same ladder on a GPT",
    minutes=105,
    exercises=EXERCISES,
    recordings=(
        Recording(
            "gpt",
            [*map(rung, RUNGS), rung("gpt_fused", batch_size=64)],
            several=_on_several,
        ),
    ),
    jobs="9",
    prepare="nothing",
    stuck="each micro-batch's loss counts by its share",
)
