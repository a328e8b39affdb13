"""What shows the lab's mechanism in a small run: traces."""

from __future__ import annotations

from course.lab import NOT_APPLICABLE, Fact, Rank


def traced(rank: Rank) -> list[str]:
    """Return which steps were traced, and whether completely."""
    steps = rank.evidence.traced
    return [f"step {step}" + ", in part" * (phases < 5) for step, phases in steps.items()]


FACTS = (
    Fact("list of traced steps", traced,
         "use profiling.schedule(cfg), and call profiler.step() at the end of every step"),
    Fact("the written trace", lambda rank: NOT_APPLICABLE if rank.rank else rank.notes.traces,
         "schedule=profiling.schedule(cfg), on_trace_ready=run.save_trace and record_shapes=True",
         "trace"),
)  # fmt: skip
