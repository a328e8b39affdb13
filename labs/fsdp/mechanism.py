"""What shows the lab's mechanism in a small run: shards, their gathers and checkpoints."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from course.lab import NOT_APPLICABLE, Fact, NotApplicable, Rank, facts

MOST = 0.5  # share of a network's weights that a rank holds only if it gathers all of them


def sharding(name: str) -> Callable[[Rank], Any]:
    """Return a function that lists a property of fully_shard's calls, each value once."""
    return lambda rank: ", then ".join(
        facts.distinct([str(getattr(call, name)) for call in rank.notes.shard_calls])
    )


def gathers(rank: Rank) -> dict[str, str] | NotApplicable:
    """Return how many all-gathers precede each stretch of computation, in each pass.

    With tensor parallelism, ranks may gather parts instead of adding them up.
    """
    if rank.config.tensor > 1:
        return NOT_APPLICABLE
    return {
        f"number of all-gathers before each computation in {phase}": " ".join(map(str, counts))
        for phase, counts in rank.evidence.gathers.items()
    }


def held(rank: Rank) -> str | NotApplicable:
    """Return how much of a sharded network a rank held while it was saved; the first needs all."""
    size = rank.evidence.held_to_save
    if rank.rank == 0 or size is NOT_APPLICABLE:
        return NOT_APPLICABLE
    return "all" if size > MOST * 4 * rank.evidence.parameters else "one weight at a time"


FACTS = (
    Fact("list of the numbers of weights in fully_shard's calls", sharding("weights"),
         "a unit may have several blocks: pass all of `unit`, a list, to one call"),
    Fact("list of the policy's types, param_dtype and reduce_dtype,", sharding("types"),
         "pass mp_policy= in each call, with cfg.gather_bf16 of both: by default, PyTorch before "
         "2.15 reduces in param_dtype"),
    Fact("", lambda rank: rank.notes.autocast,
         "with cfg.gather_bf16 the policy replaces autocast: `nullcontext(…)` instead, also in "
         "validation"),
    Fact("number of process groups of fully_shard's meshes",
         lambda rank: len({x for call in rank.notes.shard_calls for x in call.groups}) or 1,
         "create one mesh for all units: each new one has process groups, and so buffers, of its "
         "own"),
    Fact("mesh of the optimizer's weights", facts.entry("spread.mesh"),
         "call `optimizers.create(…)` after fully_shard, which replaces the weights"),
    Fact("", lambda rank: rank.notes.prefetch,
         "in forward these are the next cfg.prefetch units; in backward those before it, the "
         "nearest first"),
    Fact("", gathers, "check reshard_after_forward= and which units are prefetched"),
    Fact("part of the network that this rank held to save it", held,
         "use full_state_dict=True and cpu_offload=True, so that only rank 0 keeps all weights"),
    Fact("the checkpoint", lambda rank: rank.files.checkpoint,
         "all ranks call `dcp.save(…)` on training_state(…), weights and the optimizer's state"),
)  # fmt: skip
