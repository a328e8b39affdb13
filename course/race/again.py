"""Run an entry of the board again, with seeds of its own: does it hold?"""

from __future__ import annotations

import json
import secrets
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from course.race import board, tracks
from course.race.board import Entry
from course.race.entry import run_all
from course.runs.files import write_atomically
from course.text import digits

VERIFIED = "verified-{}.json"
BESIDE = "{}.verified"  # the folder of such files: an entry's own is its author's, or the course's
ALIKE = 0.1  # times that differ by less say nothing


@dataclass(frozen=True)
class Outcome:
    """What running an entry again brought: does it still count, and in words."""

    holds: bool
    said: str
    again: Entry


def verify(
    name: str, *, seeds: int | None = None, site: str = "local", to: str | Path | None = None
) -> Outcome:
    """Run an entry's stored script as often as its track asks for, and compare.

    Accuracy must hold anywhere. Times and joules are compared on the same machine alone. What came
    of it is stored on the board, if its folder may be written.

    Raises:
        ValueError: no such entry, or several; or its script is another than was entered.
    """
    place = board.folder(to)
    entry = board.get(name, place)
    script = board.place_of(entry, place) / board.SCRIPT
    if not board.is_as_entered(entry, place):
        raise ValueError(f"{script} is not what was entered: its SHA-256 is not the entry's")
    count = seeds or tracks.get(entry.track).seeds
    drawn = [secrets.randbelow(2**31) for _ in range(count)]
    blank = replace(entry, trials=(), seeds=(), machine="", hardware={}, versions={})
    outcome = compared(entry, run_all(script, blank, drawn, site))
    _store(outcome, entry, place)
    return outcome


def compared(entry: Entry, again: Entry) -> Outcome:
    """An entry and its repetition, in words."""
    if again.verdict:
        return Outcome(False, f"{entry.id} does not hold: {again.verdict}", again)
    said = (
        f"{entry.id} holds: mean accuracy {again.top1:.2%} with {len(again.trials)} other seeds, "
        f"p = {again.p:.2g}"
    )
    if again.machine != entry.machine:
        where = f"on {again.machine}, where times are others than on {entry.machine}"
        return Outcome(True, f"{said}; {digits(again.seconds)} s {where}", again)
    if not entry.seconds:
        return Outcome(True, f"{said}; {digits(again.seconds)} s, and before none was taken", again)
    ratio = again.seconds / entry.seconds
    alike = "as before" if abs(ratio - 1) < ALIKE else f"{digits(ratio)} times as long as before"
    return Outcome(True, f"{said}; {digits(again.seconds)} s, {alike}", again)


def _store(outcome: Outcome, entry: Entry, place: Path) -> None:
    moment = datetime.now()
    about = {"at": moment.isoformat(timespec="seconds"), "holds": outcome.holds}
    about |= {"said": outcome.said, "entry": asdict(outcome.again)}
    try:
        folder = board.folder_for_all(place, entry.track, BESIDE.format(entry.id))
        path = folder / VERIFIED.format(f"{moment:%m%d-%H%M%S}")
        write_atomically(path, json.dumps(about, indent=1))
    except OSError as error:
        print(f"what came of it could not be stored on the board: {error}")


def outcomes(entry: Entry, place: Path) -> list[str]:
    """What came of running an entry of a board again, in words, the oldest first."""
    own = board.place_of(entry, place)
    folders = (own, place / entry.track / BESIDE.format(entry.id))
    paths = [path for folder in folders for path in folder.glob(VERIFIED.format("*"))]
    return [*filter(None, map(_read, sorted(paths, key=lambda path: path.name)))]


def _read(path: Path) -> str:
    try:
        told = json.loads(path.read_text())
        return f"{told['at'].replace('T', ' ')}: {told['said']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        board.pass_over(path, error)
        return ""
