"""How it is seen that a training can be stopped: what is saved, and how it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from course.checks.lab import Mechanism
from course.runs.run import Run
from labs.day2_2_data_parallel.lab import SAME_LOSS
from labs.day4_2_fsdp.rank_checks import SMALL_VIT_SETTINGS, of_ranks, seen_by_ranks

KEPT = 2
BITS = 1e-9  # of a loss: two that are the same differ by nothing
# A small training in which all that a run is changes: fp16 with a gradient that overflows, so that
# the scale does; a schedule; random numbers in each step; two epochs, each shuffled otherwise.
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
# Steps: saved are 3 and 6, and the kill is in 6's. What overflows does so before 3.
EVERY, KILLED_AFTER, ASKED_IN = 3, 5, 4

# Of ranks the first one's loss is noted: with so low a rate images differ little in theirs.
SAVED: dict[str, Any] = SMALL_VIT_SETTINGS | {"steps": 3, "deterministic": True, "lr": 1e-6}

# What a step begins with, and what is to blame where it is not the same after a restart.
LOST = {
    "images": (
        "step {step} saw other images than the run that was not stopped: the epoch goes on behind "
        "the {seen} batches that it has seen. `skip(…)`"
    ),
    "scale": "step {step} scaled the loss by {found:g}, and {due:g} is due: the scaler's state",
    "rate": (
        "step {step} had the learning rate {found:.3g}, and {due:.3g} is due: the schedule's state"
    ),
    "weights": "step {step} began with other weights: the network's state",
    "momentum": "step {step} began with other momentum: the optimizer's state, which is no weight",
    "random": (
        "step {step} drew other random numbers: take their states when all else is as it will be. "
        "`randomness.set_states(…)`"
    ),
}


def _save_faults(run: Run, against: Run) -> Iterator[str]:
    ranks, steps = seen_by_ranks(run), run.config.epochs * run.config.steps
    due, saves = steps // run.config.save_every, [len(each["saves"]) for each in ranks]
    left = ranks[0]["left"]
    whole = [each["name"] for each in left if each["whole"]]
    named = [name for name in whole if not name.startswith(".")]
    renamed = {name: safe for each in ranks for name, safe in each["renamed"].items()}
    if not any(saves):
        yield "nothing was saved: `torch.save(…)` every cfg.save_every steps"
    elif sum(1 for each in saves if each) > 1:
        yield (
            "every rank saved, into the same file: all have the same weights, so one of them "
            "writes. `if run.rank == 0`"
        )
    elif max(saves) != due:
        yield f"{max(saves)} checkpoints were saved in {steps} steps, and {due} are due"
    elif in_place := [name for name in named if name not in renamed]:
        yield (
            f"{in_place[-1]} was written under its final name: whoever is killed meanwhile leaves "
            f"half a checkpoint that looks like a whole one. Write a draft, and rename it"
        )
    elif loose := [name for name in named if not renamed[name]]:
        yield (
            f"{loose[-1]} got its name before the disk had all of it: should the power fail then, "
            f"it may be half a checkpoint. `file.flush()`, `os.fsync(file.fileno())`, then rename"
        )
    elif len(whole) != KEPT:
        yield (
            f"{len(whole)} checkpoint{'s' * (len(whole) != 1)} can be read at the end, and the "
            f"last {KEPT} are to be kept: one may turn out to be damaged, more fill the disk"
        )


def _save_seen(run: Run) -> str:
    ranks = seen_by_ranks(run)
    kept = ", ".join(each["name"] for each in ranks[0]["left"] if each["whole"])
    return f"rank 0 saved {len(ranks[0]['saves'])} times, and the others never; kept: {kept}"


def _interrupted_faults(run: Run, against: Run) -> Iterator[str]:
    """What was lost between the two processes of a run, each cause by itself."""
    seen, before = run.record.evidence, against.record.evidence
    if not seen["interrupted"]:
        yield f"nothing was saved behind step {KILLED_AFTER}, so nothing cut it off: TODO 35 first"
        return
    yield from _begun_faults(run)
    at = seen["began_at"]
    if not at:
        return
    own, due = seen["moments"].get(str(at), {}), before["moments"].get(str(at), {})
    behind = at % run.config.steps
    for name, told in LOST.items():
        if own.get(name) != due.get(name):
            yield told.format(step=at, found=own.get(name), due=due.get(name), seen=behind)
    if seen["at_end"] != before["at_end"]:
        yield "at the end the weights are not the same, to the bit"
    if run.record.val_loss != against.record.val_loss:
        yield (
            "the weights are the same, and validation is not: BatchNorm's running means are in "
            "state_dict(), and among no parameters"
        )


def _begun_faults(run: Run) -> Iterator[str]:
    """Did the second process go on where the newest whole checkpoint is?"""
    seen = run.record.evidence
    at, how = seen["began_at"], seen["interrupted"][-1]["how"]
    whole = [each for each in seen["found"] if each["whole"]]
    steps = [each["step"] for each in whole if each["step"] is not None]
    if not whole:
        yield (
            "killed while it saved, and no whole checkpoint is left: it was written in place, over "
            "the one before. Write a draft, and rename it"
        )
    elif not at:
        yield (
            f"the second process began at step 0, and found {len(whole)} whole checkpoints: take "
            f"the newest. `checkpoint.newest(…)`"
        )
    elif how == "SIGTERM" and at <= ASKED_IN:
        yield (
            f"asked to end in step {ASKED_IN}, it ended at once, so it went on from step {at}: "
            f"note the signal, finish the step and save. `signal.signal(…)`"
        )
    elif steps and at != max(steps):
        yield f"it went on from step {at}, and the newest whole checkpoint is of step {max(steps)}"


def _asked_faults(run: Run, against: Run) -> Iterator[str]:
    seen = run.record.evidence
    if seen["interrupted"] and not seen["found"]:  # so it is still the first process
        yield (
            f"asked to end in step {ASKED_IN}, it went on to its last: after a while Slurm kills "
            f"it. Save, and leave: `run.mark_interrupted(…)`"
        )
    else:
        yield from _interrupted_faults(run, against)


def _interrupted_seen(run: Run) -> str:
    seen = run.record.evidence
    damaged = [each["name"] for each in seen["found"] if not each["whole"]]
    said = f"; {', '.join(damaged)} was cut short" if damaged else ""
    how = seen["interrupted"][-1]["how"]
    return (
        f"ended by {how}; another process went on from step {seen['began_at']}{said}: the same "
        f"images, scale, learning rate, weights, momentum and random numbers, to the bit"
    )


def _stopped(title: str, todo: int, **own: Any) -> Mechanism:
    """A check of one process that is interrupted, and the same training without that."""
    changes = {name: own.pop(name) for name in ("sigkill_step", "sigterm_step") if name in own}
    return Mechanism(
        title=title,
        todo=todo,
        rung="restarted",
        against="channels_last",
        seen=_interrupted_seen,
        changes=changes | {"save_every": EVERY},
        settings=CHANGING,
        tolerance=BITS,
        timed=False,
        **own,
    )


_SAVED = of_ranks(
    "one rank saves, whole or not at all",
    todo=35,
    seen=_save_seen,
    word="def save",
    faults=_save_faults,
    rung="restarted",
    tolerance=SAME_LOSS,
    save_every=1,
)
CHECKS = {
    "day4.save": replace(_SAVED, settings=SAVED),
    "day4.restart": _stopped(
        "killed while it saves, it goes on to the bit",
        36,
        sigkill_step=KILLED_AFTER,
        word="step = 0",
        faults=_interrupted_faults,
    ),
    "day4.asked": _stopped(
        "asked to end, it saves, and goes on to the bit",
        37,
        sigterm_step=ASKED_IN,
        word="asked =",
        faults=_asked_faults,
    ),
}
