"""What was measured once on a machine, beside its runs: tables in its index, under their names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from course.runs import recordings

if TYPE_CHECKING:
    import pandas as pd


def table(machine: str, part: str) -> pd.DataFrame:
    """The rows of a part, and which machine they are from, when they were measured and with what.

    Raises:
        ValueError: nothing was recorded there, or no such part; the message lists who has it.
    """
    import pandas as pd

    found = recordings.part(machine, part)
    when = recordings.origin({"date": found["date"], "versions": {"torch": found["torch"]}})
    return pd.DataFrame(found["rows"]).assign(machine=f"{found['machine']} ({when})")
