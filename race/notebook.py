"""The race in a notebook: tables and pictures of a board.

Plotting is imported where it is needed: the referee, a separate process, does not plot.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from course.lab import read_utf8
from course.runs import PROJECT
from race import board
from race.entries import Entry, ranked
from race.submission import read_settings
from race.tracks import find_track

if TYPE_CHECKING:
    from course.charts import Picture


def _entries(
    track: str, to: str | Path | None, shipped_only: bool, machine: str, own_only: bool = False
) -> list[Entry]:
    folder = board.RECORDED_ENTRIES if shipped_only else board.board_folder(to)
    recorded = not (shipped_only or own_only)
    return board.read_entries(folder, track=track, machine=machine, recorded=recorded)


def table(
    track: str,
    *,
    to: str | Path | None = None,
    shipped_only: bool = False,
    own_only: bool = False,
    machine: str = "",
) -> pd.DataFrame:
    """List a track's board, entries that count first; those of the course are included.

    Args:
        to: the board's folder.
        shipped_only: only the entries of the course.
        own_only: without the entries of the course.
        machine: only entries whose machine's name contains it, because times on different
            machines are not comparable.
    """
    entries = _entries(track, to, shipped_only, machine, own_only)
    counting = ranked(entries)
    others = [entry for entry in entries if entry not in counting]
    return pd.DataFrame(
        {
            "entry": entry.name,
            "by": entry.by,
            "seconds": entry.seconds or math.nan,
            "before_step_one_s": entry.median("ready_s") or math.nan,
            "joules": entry.joules or math.nan,
            "accuracy": entry.top1 or math.nan,
            "std": entry.std or math.nan,
            "seeds": len(entry.trials),
            "p": entry.p,
            "verdict": entry.verdict or "counts",
            "machine": f"{entry.gpus} × {entry.machine}" if entry.gpus > 1 else entry.machine,
        }
        for entry in [*counting, *others]
    )


def plot_accuracy(
    track: str,
    *,
    over: str = "seconds",
    to: str | Path | None = None,
    shipped_only: bool = False,
    own_only: bool = False,
    machine: str = "",
) -> Picture | None:
    """Plot accuracy over "seconds" or "joules" for a track's entries; None without any.

    The other arguments are those of `table`.
    """
    from race.figures import plot_accuracies

    entries = _entries(track, to, shipped_only, machine, own_only)
    return plot_accuracies(entries, find_track(track).target).get(over)


def settings(script: str | Path, track: str) -> dict[str, Any]:
    """Return a script's SETTINGS for a track."""
    return read_settings(read_utf8(PROJECT / script), track)


def difference(before: str, after: str, *, to: str | Path | None = None) -> None:
    """Print the difference of two entries' scripts; each entry by its id, or a part of it."""
    from race.page import diff

    folder = board.board_folder(to)
    entries = [board.find_entry(name, folder) for name in (before, after)]
    print(diff(folder, *entries) or "no difference: it is the same script")
