"""The one form of the tables in README and docs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown(head: Iterable[str], rows: Iterable[Sequence[str]], *said: str, source: str) -> str:
    """A table; below it what is said of it, and in italics where it comes from."""
    named = [*head]
    lines = [f"| {' | '.join(named)} |", f"|{'---|' * len(named)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    for paragraph in (*said, f"*{source}*"):
        lines += ["", paragraph]
    return "\n".join([*lines, ""])
