"""Write the board as a page that opens without a server, and as a table."""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pandas as pd

from course.lab import digits
from course.runs import runs_root, shared_files
from race import board, figures
from race.board import PAGE
from race.entries import Entry, ranked
from race.tracks import SIGNIFICANCE, TRACKS, find_track
from race.verification import read_outcomes

TEMPLATE = Path(__file__).with_name("page.html.j2")
PUBLISHED = Path(__file__).with_name("published.csv")
MAX_COMPARED = 10**6  # pairs of lines, at most 0.1 s: otherwise, repeated lines could take minutes
# Of a difference: with complete ones, an account could make the page 500 MB large.
MAX_CHANGES, MAX_WIDTH, MAX_DIFF = 300, 300, 12_000  # lines, characters in each, and in all
MAX_BOARDS = 24  # on a page: each takes 0.2 s and 110 KB, and anyone can write a machine's name
RELOAD_S = 10
Board = tuple[tuple[str, str], list[Entry]]  # its track and machine, and its entries
COLUMNS = "place track entry by seconds joules accuracy machine verdict"


def rows(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """Return a table for a terminal: for each track and machine the fastest first."""
    table = []
    for _, group in _groups(entries):
        counting = ranked(group)
        for entry in [*counting, *(entry for entry in group if entry not in counting)]:
            place = str(counting.index(entry) + 1) if entry in counting else ""
            amounts = [digits(x) if x else "–" for x in (entry.seconds, entry.joules)]
            top1 = f"{entry.top1:.2%}" if entry.top1 else "–"
            names, verdict = (entry.track, entry.id, entry.author), entry.verdict or "counts"
            table.append([place, *names, *amounts, top1, entry.machine, verdict])
    return COLUMNS.split(), table


def _groups(entries: Sequence[Entry]) -> Iterator[Board]:
    """Group comparable entries: same track, same machine, same number of GPUs."""
    order = list(TRACKS)

    def key(entry: Entry) -> tuple[int, str, int]:
        return order.index(entry.track), entry.machine, entry.gpus

    for (track, machine, gpus), group in groupby(sorted(entries, key=key), key):
        yield (order[track], f"{gpus} × {machine}" if gpus > 1 else machine), [*group]


def _shown(boards: Sequence[Board]) -> list[Board]:
    """Return the boards for a page: those of most people first, then in turns from each person."""
    counts, order = Counter(), {}
    for names, group in boards:
        owners = {entry.owner for entry in group}
        is_recorded = "" in owners
        order[names] = not is_recorded, -len(owners), min(counts[owner] for owner in owners)
        counts.update(owners)
    kept = sorted(order, key=order.get)[:MAX_BOARDS]
    return [board for board in boards if board[0] in kept]


def board_page(to: str | Path | None = None, *, machine: str = "", live: bool = False) -> Path:
    """Write the board's page with its current entries, and return its path, for a browser.

    It goes into the board's folder if that is yours, and otherwise into your runs folder.

    Args:
        to: the board's folder; by default `board.board_folder()`.
        machine: only entries whose machine's name contains it.
        live: the page reloads itself every few seconds.
    """
    folder = board.board_folder(to)
    board.prepare(folder)
    place = folder / PAGE
    if not place.is_file() or place.lstat().st_uid != os.getuid():
        user = shared_files.user_name((place if place.is_dir() else folder).stat().st_uid)
        shown, place = place, runs_root() / PAGE
        place.parent.mkdir(parents=True, exist_ok=True)
        print(f"{shown} belongs to {user}: your page is {place}", file=sys.stderr)
    _write(place, folder, machine, live)
    return place


def _write(place: Path, folder: Path, machine: str, live: bool) -> None:
    board.publish(place, render_page(folder, machine=machine, live=live), folder)


def keep_writing(place: Path, folder: Path, machine: str = "") -> None:
    """Write the page into its place after each new entry, until interrupted."""
    before = None
    try:
        while True:
            folders = (*TRACKS, board.VERIFIED)
            now = {path for name in folders for path in folder.glob(f"{name}/[!.]*")}
            if now != before:
                _write(place, folder, machine, live=True)
                before = now
            time.sleep(2)
    except KeyboardInterrupt:
        _write(place, folder, machine, live=False)


def render_page(folder: Path, *, machine: str = "", live: bool = False) -> str:
    """Render the page as one file, with the pictures inside."""
    from jinja2 import Environment

    entries, problems = board.read_board(folder, machine=machine)
    boards = _shown(every := [*_groups(entries)])
    if missing := len(every) - len(boards):
        problems.append(
            f"boards that are not shown: {missing}. See one with: course race --machine NAME"
        )
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    environment.filters["digits"] = lambda value: "–" if value is None else digits(value)
    return environment.from_string(TEMPLATE.read_text()).render(
        tables=[_table(folder, *names, group) for names, group in boards],
        problems=problems,
        published=published_results().to_dict("records"),
        written_at=datetime.now().isoformat(sep=" ", timespec="seconds"),
        reload_s=RELOAD_S if live else 0,
        machine=machine,
        significance=SIGNIFICANCE,
    )


def _table(folder: Path, track: str, machine: str, entries: list[Entry]) -> dict[str, Any]:
    counting, others = ranked(entries), [entry for entry in entries if not entry.counts]
    previous = dict(zip([entry.id for entry in entries], [None, *entries]))
    plots = figures.plot_accuracies(entries, find_track(track).target)
    return {
        "track": find_track(track),
        "machine": machine or "no machine: nothing ran",
        "by_time": counting,
        "by_energy": ranked(entries, "joules"),
        "not_counted": others,
        "pictures": [picture._repr_html_() for picture in plots.values()],
        "details": [_details(folder, entry, previous[entry.id]) for entry in [*counting, *others]],
    }


def _details(folder: Path, entry: Entry, previous: Entry | None) -> dict[str, Any]:
    return {
        "entry": entry,
        "previous": previous,
        "as_entered": board.is_as_entered(entry, folder),
        "diff": diff(folder, previous, entry) if previous else "",
        "outcomes": read_outcomes(entry, folder),
    }


def diff(folder: Path, before: Entry, after: Entry) -> str:
    """Return the difference of two entries' scripts; empty if one is missing."""
    try:
        scripts = [board.script_of(entry, folder).splitlines() for entry in (before, after)]
    except (OSError, ValueError):
        return ""
    counts, lengths = Counter(scripts[0]), [*map(len, scripts)]
    same = sum(counts[line] for line in scripts[1])  # each may be looked at once for each match
    if (sum(lengths) + same) * min(lengths) > MAX_COMPARED:
        return "not shown: the scripts are long, or repeat too many lines"
    changes = difflib.unified_diff(*scripts, before.id, after.id, lineterm="", n=1)
    cut = [x[:MAX_WIDTH] + " …" * (len(x) > MAX_WIDTH) for x in islice(changes, MAX_CHANGES)]
    text = "\n".join(map(shared_files.one_line, cut))
    is_all = next(changes, None) is None and len(text) <= MAX_DIFF
    return text if is_all else f"{text[:MAX_DIFF]}\n… the rest is not shown"


def published_results() -> pd.DataFrame:
    """Load the results of published training runs, with sources."""
    return pd.read_csv(PUBLISHED)
