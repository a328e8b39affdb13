"""What shows the lab's mechanism in a small run: the process group, DDP and its averages."""

from __future__ import annotations

from course.lab import NOT_APPLICABLE, Fact, NotApplicable, Rank, facts


def synchronised(rank: Rank) -> dict[str, int] | NotApplicable:
    """Return how often DDP averages gradients; tensor parallelism may add up in other ways."""
    if rank.config.tensor > 1:
        return NOT_APPLICABLE
    counts = {"the backward pass": facts.all_reduces("backward_collectives")(rank)}
    if rank.config.micro_batch:
        counts["a later step"] = facts.all_reduces("later.collectives")(rank)
    return {f"number of all-reduces in {where}": count for where, count in counts.items()}


FACTS = (
    Fact("process group", lambda rank: "none" if rank.evidence.group is NOT_APPLICABLE else "one",
         "join one, `distributed.init_process_group(…)`, only if run.world_size > 1"),
    Fact("timeout of the group in seconds", facts.entry("group.timeout_s"),
         "timeout=timedelta(seconds=cfg.collective_timeout_s)"),
    Fact("number of wrappers of DDP", lambda rank: len(rank.notes.ddp_devices),
         "if run.world_size > 1, wrap the network once, before the loop"),
    Fact("device_ids of DDP", lambda rank: rank.notes.ddp_devices,
         "device_ids=[run.local_rank], or leave it out"),
    Fact("DDP", facts.entry("ddp"),
         "DDP(model, **ddp_options)"),
    Fact("", synchronised,
         "each group of ranks adds up its gradients once per update, in the last backward pass"),
)  # fmt: skip
