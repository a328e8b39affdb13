"""The race in a notebook: tables and pictures of a board.

What draws is imported where it is needed: the referee, a process of its own, does not draw.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from course.runs.run import PROJECT
from race import board, tracks
from race.board import Entry
from race.entry import settings_of
from race.published import ANCHORS

if TYPE_CHECKING:
    import pandas as pd

    from course.charts.base import Picture


def tracks_table() -> pd.DataFrame:
    """What each track asks for."""
    import pandas as pd

    return pd.DataFrame(
        {
            "track": track.name,
            "on": track.title,
            "target": track.target,
            "budget_s": track.budget_s,
            "seeds": track.seeds,
        }
        for track in tracks.TRACKS.values()
    )


def _entries(track: str, to: str | Path | None, shipped_only: bool, machine: str) -> list[Entry]:
    place = board.SHIPPED if shipped_only else board.folder(to)
    return board.entries(place, track=track, machine=machine, shipped=not shipped_only)


def table(
    track: str,
    *,
    by: str = "seconds",
    to: str | Path | None = None,
    shipped_only: bool = False,
    machine: str = "",
) -> pd.DataFrame:
    """A track's board, those that count first; the shipped entries are among them.

    Args:
        by: "seconds", or "joules": entries without any are left out then.
        shipped_only: without those of the board.
        machine: of those alone whose name contains it: times on different ones do not compare.
    """
    import pandas as pd

    found = _entries(track, to, shipped_only, machine)
    ranked = board.ranked(found, by)
    rest = [] if by == "joules" else [each for each in found if each not in ranked]
    return pd.DataFrame(
        {
            "entry": each.name,
            "by": each.by,
            "seconds": each.seconds or math.nan,
            "before_step_one_s": each.middle("ready_s") or math.nan,
            "joules": each.joules or math.nan,
            "accuracy": each.top1 or math.nan,
            "seeds": len(each.trials),
            "p": each.p,
            "verdict": each.verdict or "counts",
            "machine": each.machine,
        }
        for each in [*ranked, *rest]
    )


def ways(
    track: str,
    *,
    over: str = "seconds",
    to: str | Path | None = None,
    shipped_only: bool = False,
    machine: str = "",
) -> Picture | None:
    """Accuracy over time, or over joules, of a track's entries; None without any.

    Args:
        machine: of those alone whose name contains it.
    """
    from race import pictures

    found = board.judged(_entries(track, to, shipped_only, machine), over)
    return pictures.ways(found, tracks.get(track).target).get(over)


def settings(script: str | Path, track: str) -> dict[str, Any]:
    """What a script's SETTINGS have for a track."""
    return settings_of((PROJECT / script).read_text(), track)


def difference(before: str, after: str, *, to: str | Path | None = None) -> None:
    """Print what one entry's script has otherwise than another's; entries by name or part of it."""
    from race import page

    place = board.folder(to)
    one, other = board.get(before, place), board.get(after, place)
    print(page.difference(place, one, other) or "nothing: it is the same script")


def margin(spread: float, seeds: int) -> float:
    """So far above the target a mean must be to count, if accuracies spread by so much.

    Args:
        spread: the standard deviation over seeds.
    """
    from scipy import stats

    return float(stats.t.ppf(1 - tracks.SURE, seeds - 1)) * spread / math.sqrt(seeds)


def board_page(to: str | Path | None = None, *, machine: str = "", live: bool = False) -> Path:
    """Write the board's page: its path, to be opened in a browser.

    Args:
        machine: of those alone whose name contains it.
        live: the page loads itself anew every few seconds.
    """
    from race import page

    return page.write(board.folder(to), machine=machine, live=live)


def anchors() -> pd.DataFrame:
    """What others reached, each with its source."""
    import pandas as pd

    return pd.DataFrame(ANCHORS)
