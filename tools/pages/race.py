"""The race's page: its tracks, its shipped entries, its anchors."""

from __future__ import annotations

from collections.abc import Sequence

from course.race import board, published, tracks
from course.race.board import Entry
from course.text import digits
from tools.pages.markdown import markdown

HEAD = ("entry", "seconds", "of these before step one", "joules", "accuracy", "p", "machine")
RANGE = "{} ({} to {})"


def of_tracks() -> str:
    """A row for each track."""
    rows = [
        [
            each.name,
            each.title,
            f"{each.target:.0%}",
            f"{each.budget_s:g} s",
            str(each.seeds),
            _ran(each.name),
        ]
        for each in tracks.TRACKS.values()
    ]
    head = ("track", "on", "target", "budget of a run", "seeds, at least", "entries below")
    return markdown(head, rows, source="The target: accuracy on all 8,192 validation crops.")


def _ran(track: str) -> str:
    return str(len(board.entries(board.SHIPPED, track=track, shipped=False)) or "not yet run")


def shipped() -> str:
    """A row for each entry that the course ships, track by track and machine by machine."""
    rows, said = [], []
    for track in tracks.TRACKS:
        found = board.entries(board.SHIPPED, track=track, shipped=False)
        found.sort(key=lambda entry: entry.machine)  # as they were made, on each
        rows += [_row(entry) for entry in found]
        said += [f"{track}: {_origin(found)}"] if found else []
    source = "Medians over the seeds, and their range. " + " ".join(said)
    return markdown(HEAD, rows, source=source)


def _row(entry: Entry) -> Sequence[str]:
    named = f"{entry.track}: {entry.name}{'' if entry.counts else ', does not count'}"
    return [
        named,
        _with_range(entry, "seconds"),
        _with_range(entry, "ready_s"),
        _with_range(entry, "joules"),
        f"{entry.top1:.2%}",
        f"{entry.p:.1g}",
        entry.machine,
    ]


def _with_range(entry: Entry, name: str) -> str:
    ends = entry.spread(name)
    if not ends:
        return "–"
    return RANGE.format(digits(entry.middle(name)), *map(digits, ends))


def _origin(entries: Sequence[Entry]) -> str:
    first = entries[0]
    torch_version = first.versions["torch"].partition("+")[0]
    seeds = {len(entry.trials) for entry in entries}
    return (
        f"recorded {first.entered_at[:10]}, PyTorch {torch_version}, "
        f"{' or '.join(map(str, sorted(seeds)))} seeds each."
    )


def of_anchors() -> str:
    """A row for each of what others reached."""
    rows = [
        [f"[{each.what}]({each.source})", each.target, each.machine, each.time, each.energy]
        for each in published.ANCHORS
    ]
    head = ("what", "accuracy", "machine", "time", "energy")
    return markdown(head, rows, source="As published; 2026-11-22.")
