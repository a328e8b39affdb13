"""The board as a page that opens without a server, and as a table."""

from __future__ import annotations

import difflib
import os
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import groupby
from pathlib import Path
from typing import Any

from course.runs.files import write_atomically
from course.runs.run import runs_root
from course.text import digits, one_line
from race import board, pictures, shared_files, tracks
from race.again import outcomes
from race.board import Entry
from race.published import ANCHORS

PAGE = "board.html"
TEMPLATE = Path(__file__).with_name("page.html.j2")
MOST_LINES = 1000  # of a script whose changes are shown: comparing longer ones could take hours
RELOAD_S = 10  # a page that is kept up to date loads itself anew so often
COLUMNS = ["place", "track", "entry", "by", "seconds", "joules", "accuracy", "machine", "verdict"]


def rows(entries: Sequence[Entry]) -> tuple[list[str], list[list[str]]]:
    """A table for a terminal: those that count first, the fastest of a track and machine first."""
    found = []
    for _, some in _tables(entries):
        ranked = board.ranked(some)
        for place, entry in enumerate(ranked, 1):
            found.append([str(place), *_row(entry), "counts"])
        others = [each for each in some if each not in ranked]
        found += [["", *_row(entry), entry.verdict] for entry in others]
    return COLUMNS, found


def _row(entry: Entry) -> list[str]:
    shown = [digits(each) if each else "–" for each in (entry.seconds, entry.joules)]
    top1 = f"{entry.top1:.2%}" if entry.top1 else "–"
    return [entry.track, entry.id, entry.by, *shown, top1, entry.machine]


def _tables(entries: Sequence[Entry]) -> Iterator[tuple[tuple[str, str], list[Entry]]]:
    """Entries that compare: of one track, on one machine, on as many GPUs."""
    order = list(tracks.TRACKS)

    def key(entry: Entry) -> tuple[int, str, int]:
        return order.index(entry.track), entry.machine, entry.gpus

    for (_, machine, gpus), some in groupby(sorted(entries, key=key), key):
        found = [*some]
        yield (found[0].track, f"{gpus} × {machine}" if gpus > 1 else machine), found


def write(place: Path, *, machine: str = "", live: bool = False) -> Path:
    """Write the page of a board, from the entries that are there now.

    It is in the board's folder if that is yours, and otherwise in your runs folder.
    """
    board.prepare(place)
    target, owner = place / PAGE, place.stat().st_uid
    if owner != os.getuid():
        target = runs_root() / PAGE
        who = shared_files.user_name(owner)
        print(f"{place / PAGE} is {who}'s to write: yours is {target}", file=sys.stderr)
        target.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(target, text(place, machine=machine, live=live))
    return target


def keep_writing(place: Path, machine: str = "") -> None:
    """Write the page whenever an entry was added, until it is interrupted."""
    seen = None
    try:
        while True:
            folders = (*tracks.TRACKS, board.VERIFIED)
            now = {path for folder in folders for path in place.glob(f"{folder}/[!.]*")}
            if now != seen:
                write(place, machine=machine, live=True)
                seen = now
            time.sleep(2)
    except KeyboardInterrupt:
        write(place, machine=machine)


def text(place: Path, *, machine: str = "", live: bool = False) -> str:
    """The page itself: one file, pictures inside."""
    from jinja2 import Environment

    shown, problems = board.read(place, machine=machine)
    template = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template.filters["digits"] = lambda value: "–" if value is None else digits(value)
    return template.from_string(TEMPLATE.read_text()).render(
        tables=[_table(place, *each) for each in _tables(shown)],
        problems=problems,
        anchors=ANCHORS,
        written_at=datetime.now().isoformat(sep=" ", timespec="seconds"),
        reload_s=RELOAD_S if live else 0,
        machine=machine,
        sure=tracks.SURE,
    )


def _table(place: Path, of: tuple[str, str], some: list[Entry]) -> dict[str, Any]:
    fast, lean = board.ranked(some), board.ranked(some, "joules")
    others = [each for each in some if not each.counts]
    drawn, target = board.judged(some), tracks.get(of[0]).target
    before = dict(zip([each.id for each in some], [None, *some]))
    return {
        "track": tracks.get(of[0]),
        "machine": of[1] or "no machine: nothing ran",
        "fast": fast,
        "lean": lean,
        "others": others,
        "pictures": [each._repr_html_() for each in pictures.ways(drawn, target).values()],
        "details": [_detail(place, each, before[each.id]) for each in [*fast, *others]],
    }


def _detail(place: Path, entry: Entry, before: Entry | None) -> dict[str, Any]:
    return {
        "entry": entry,
        "before": before,
        "as_entered": board.is_as_entered(entry, place),
        "diff": difference(place, before, entry) if before else "",
        "outcomes": outcomes(entry, place),
    }


def difference(place: Path, before: Entry, entry: Entry) -> str:
    """What one entry's script has otherwise than the one before it; "" if one is missing."""
    try:
        texts = [board.script_of(each, place).splitlines() for each in (before, entry)]
    except (OSError, ValueError):
        return ""
    if max(map(len, texts)) > MOST_LINES:
        return f"not shown: a script has more than {MOST_LINES:,} lines"
    lines = difflib.unified_diff(*texts, before.id, entry.id, lineterm="", n=1)
    return "\n".join(map(one_line, lines))
