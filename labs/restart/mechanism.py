"""What shows the lab's mechanism in a small run: checkpoints, and the state after a restart."""

from __future__ import annotations

from typing import Any

from course.lab import NOT_APPLICABLE, Fact, NotApplicable, Rank, facts


def restart(rank: Rank) -> dict[str, Any] | NotApplicable:
    """Return the state at the first step after a restart."""
    if not rank.notes.is_restarted:
        return NOT_APPLICABLE
    state = {"checksum of the random numbers": rank.notes.random[0], **rank.notes.began}
    state["learning rate of each update"] = [group["lr"] for (group, *_), *_ in rank.notes.groups]
    if rank.config.precision == "fp16":
        state["scaler's scale"] = rank.evidence.loss_gradient
    return state


def saved(rank: Rank) -> int:
    """Return how often the rank called torch.save for checkpoints."""
    return rank.notes.saves if rank.config.save_every else 0


def left(rank: Rank) -> list[str] | NotApplicable:
    """Return the remaining checkpoints, on the first rank."""
    files = rank.evidence.left
    if rank.rank or files is NOT_APPLICABLE:
        return NOT_APPLICABLE
    return [f"step {x['step']}" + ", unreadable" * (x["state"] == "unreadable") for x in files]


def state(rank: Rank) -> facts.Contents:
    """Return the content of the newest checkpoint."""
    return facts.Contents({x: f"in the state of {part!r}" for x, part in rank.files.state.items()})


def renamed(rank: Rank) -> str | NotApplicable:
    """Return when checkpoints got their final names, on a rank that saved some."""
    if not saved(rank):
        return NOT_APPLICABLE
    renamings = {*rank.notes.renamed.values()}
    return next(iter(renamings - {"after fsync"} or renamings), "never")


FACTS = (
    Fact("the state after the restart", restart,
         "load the state of every part, all of it: the network also has buffers. Then restore the "
         "random numbers, `randomness.set_states(…)`"),
    Fact("number of calls of torch.save", saved,
         "rank 0 saves every cfg.save_every steps, and after SIGTERM"),
    Fact("renaming of a draft", renamed,
         "write a draft into the same folder, because only on one file system a rename is atomic; "
         "call file.flush() and os.fsync(file.fileno()), and then `draft.replace(…)`"),
    Fact("list of remaining checkpoints", left, "keep the last two, `checkpoints.remove_old(…)`"),
    Fact("the newest checkpoint", state,
         "save the state of every part, the step and the random numbers"),
)  # fmt: skip
