"""What shows the lab's mechanism in a small run: the DataLoader's arguments."""

from __future__ import annotations

from typing import Any

from course.lab import Fact, Rank


def loader(rank: Rank) -> dict[str, Any]:
    """Return the arguments of the training DataLoader, without one that dry_runs.loading checks."""
    return {name: x for name, x in vars(rank.evidence.loader).items() if name != "pin_memory"}


FACTS = (
    Fact("the training DataLoader", loader, "use the config's value"),
)  # fmt: skip
