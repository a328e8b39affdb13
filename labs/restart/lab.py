"""Checks, recorded runs, and what the course shows about the lab."""

from __future__ import annotations

from typing import Any

from course.lab import NOT_APPLICABLE, Exercise, Fact, Lab, NotApplicable, Rank, configs, facts
from course.runs import is_early_end
from labs.restart import mechanism
from labs.restart.measurements import RECORDINGS

# A small training in which every part of the state changes: fp16 with a gradient that overflows,
# which changes the loss scale; a schedule; random numbers in each step; two shuffled epochs.
CHANGING: dict[str, Any] = {
    "model": "resnet18",
    "image_px": 32,
    "batch_size": 4,
    "epochs": 2,
    "steps": 4,
    "warmup_steps": 7,
    "val_steps": 1,
    "budget_s": 0.0,
    "lr": 0.003,
    "precision": "fp16",
    "overflow_step": 1,
    "schedule": "one_cycle",
    "mix": "mixup",
    "deterministic": True,
}
# Steps 3 and 6 are saved; the process is killed while saving step 6. The overflow is before 3.
EVERY, SIGKILL_STEP, SIGTERM_STEP = 3, 5, 4

SMALL_RESTART: dict[str, Any] = {
    name: CHANGING[name] for name in ("model", "schedule", "mix", "deterministic")
} | {"optimizer": "adamw", "lr": 1e-3, "precision": "fp32", "epochs": 2, "steps": 4}

# Of several ranks, rank 0's loss is recorded; with such a low rate, losses of images differ little.
SAVED: dict[str, Any] = configs.SMALL_VIT_SETTINGS | {"steps": 3, "deterministic": True, "lr": 1e-6}


def _interrupted(title: str, changes: dict[str, Any], **options: Any) -> Exercise:
    """Return a check of one process that is interrupted, and the same training without that."""
    return Exercise(
        title=title,
        rung="restarted",
        against="channels_last",
        shows={
            "first step of the last process": "began_at",
            "checkpoints that it found": "found",
            "interruptions": "interrupted",
        },
        changes=changes | {"save_every": EVERY},
        settings=CHANGING,
        timed=False,
        small=SMALL_RESTART,
        **options,
    )


def _writers(rank: Rank) -> str | NotApplicable:
    return " and ".join(str(x.rank) for x in rank.peers if x.notes.saves) or NOT_APPLICABLE


def _ending(rank: Rank) -> str:
    if rank.notes.is_restarted:
        return f"continued from step {rank.notes.first}"
    is_marked = any(peer.notes.is_marked for peer in rank.peers)
    if rank.error and (is_marked or not is_early_end(rank.error)):
        raise facts.Missing
    return f"complete after {len(rank.notes.batches)} steps"


def _form(rank: Rank) -> str | NotApplicable:
    files = rank.evidence.left if rank.config.async_save and not rank.rank else []
    if files in ([], NOT_APPLICABLE):
        return NOT_APPLICABLE
    return "a file" if files[-1]["name"].endswith(".pt") else "a folder"


def _marking(rank: Rank) -> str | NotApplicable:
    ranks = [str(x.rank) for x in rank.peers if x.notes.is_restarted or x.notes.is_marked]
    return " and ".join(ranks) or NOT_APPLICABLE


SAVING = (
    Fact("form of a checkpoint", _form,
         "`store(…)` writes it: with cfg.async_save in the background, not by your save"),
    Fact("list of the ranks that save", _writers,
         "all would write the same files at once: `store(…)` only if run.rank == 0, because "
         "run.local_rank is a number on one node"),
)  # fmt: skip
RESTORING = (
    Fact("step that follows the restart",
         lambda rank: rank.notes.first if rank.notes.is_restarted else NOT_APPLICABLE,
         "all ranks load the newest complete checkpoint, and its step: `checkpoints.newest(…)`"),
    Fact("number of images that each epoch skips",
         facts.if_complete(lambda rank: ", ".join(map(str, rank.notes.skipped))),
         "`skip(…)` this rank's images of the epoch's own steps, step - epoch * cfg.steps, in "
         "each epoch: also if there are none, which undoes the skip before it"),
)  # fmt: skip
SIGNAL = (
    Fact("end of the ranks after SIGTERM",
         lambda rank: "in different steps" if "lost each other" in rank.error else "in one step",
         "a signal may reach one rank first, so look at `ends`, which is the same on all ranks"),
    Fact("the run after SIGTERM", _ending,
         "on each rank the handler only notes the signal, so that the step ends and is saved, "
         "whichever step it is; then call run.mark_interrupted() and return from main, before the "
         "next step"),
    Fact("list of the ranks that are to be restarted", _marking,
         "all ranks call run.mark_interrupted()"),
    *RESTORING,
)  # fmt: skip
EXERCISES = {
    "checkpoint": configs.of_ranks(
        "one rank saves, and a checkpoint is complete or absent",
        configs=(
            {"save_every": 0, "ranks": 1},
            {"save_every": 2, "ranks": 1},
            {"save_every": 2},
            {"save_every": 4, "async_save": True, "ranks": 1},
        ),
        small=SMALL_RESTART | {"precision": "fp16"},  # in fp32 the scaler has no state
        shows={"checkpoints": "left"},
        rung="restarted",
        changes={"save_every": 1},
        settings=SAVED,
        causes=SAVING,
    ),
    "resume": _interrupted(
        "after SIGKILL during a save, it resumes bit for bit",
        configs=(
            {"save_every": 0},
            {"save_every": 2, "sigkill_step": 5},
            # With a scale that an overflow has halved. Only the loss of unmixed labels shows it.
            {
                "save_every": 2,
                "sigkill_step": 3,
                "ranks": 2,
                "precision": "fp16",
                "overflow_step": 1,
                "mix": "",
            },
            # In the middle of the second epoch.
            {"save_every": 2, "sigkill_step": 5, "ranks": 2, "steps": 3, "batch_size": 12},
        ),
        changes={"sigkill_step": SIGKILL_STEP},
        causes=RESTORING,
    ),
    "sigterm": _interrupted(
        "after SIGTERM, it saves and resumes bit for bit",
        configs=(
            {"save_every": 0},
            {"save_every": 2, "sigterm_step": 1},
            {"save_every": 4, "sigterm_step": 4, "ranks": 2},
        ),
        changes={"sigterm_step": SIGTERM_STEP},
        causes=SIGNAL,
    ),
}

LAB = Lab(
    title="checkpoints, restarts and reproducibility",
    minutes=80,
    exercises=EXERCISES,
    facts=mechanism.FACTS,
    recordings=RECORDINGS,
    jobs="6, two of 2 processes",
    prepare="on Slurm with `JobRequeue=0`: add `requeue` to `sbatch`",
    stuck="restore random states last; the handler only sets a flag; ask all ranks before saving",
)
