"""Run an entry of the board again, with seeds of its own: does it hold?"""

from __future__ import annotations

import json
import os
import secrets
import sys
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from course.runs.files import write_atomically
from course.text import digits, one_line
from race import board, shared_files, tracks
from race.board import VERIFIED, Entry
from race.entry import run_all, settings_of

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

    Accuracy must hold anywhere. Times and joules are compared on the same machine only. The
    board's owner stores the result on it. The script runs as you, so read it first.

    Raises:
        ValueError: no such entry, or several; or its script is not the one that was entered.
    """
    place = board.folder(to)
    entry = board.get(name, place)
    script = board.script_of(entry, place)  # read once: its author could change it meanwhile
    if board.digest(script) != entry.sha256:
        raise ValueError(
            f"the script of {entry.id} is not what was entered: its SHA-256 is not the entry's"
        )
    count = seeds or tracks.get(entry.track).seeds
    drawn = [secrets.randbelow(2**31) for _ in range(count)]
    blank = replace(entry, trials=(), seeds=(), machine="", hardware={}, versions={})
    blank = replace(blank, settings=settings_of(script, entry.track))
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
    name = f"{entry.id}.{board.fingerprint(entry)}.{moment:%Y%m%d-%H%M%S}.json"
    try:
        board.prepare(place)
        if (owner := place.stat().st_uid) != os.getuid():
            who = shared_files.user_name(owner)
            print(f"the result is not stored: only {who}, who owns the board, can do that")
            return
        write_atomically(place / VERIFIED / name, json.dumps(about, indent=1))
    except OSError as error:
        print(f"the result could not be stored on the board: {error}")


def outcomes(entry: Entry, place: Path) -> list[str]:
    """Return what the board's owner learned by running an entry again, the oldest first.

    A verdict is about one version of an entry: if its author changes a figure, it is gone.
    """
    try:
        names = shared_files.list_folder(place, VERIFIED)
    except (OSError, ValueError):  # none yet, or not the owner's
        return []
    own = f"{entry.id}.{board.fingerprint(entry)}."
    return [*filter(None, (_read(place, name) for name in names if name.startswith(own)))]


def _read(place: Path, name: str) -> str:
    try:
        found = json.loads(shared_files.read_text(place, VERIFIED, name))
        return one_line(f"{found['at'].replace('T', ' ')}: {found['said']}")
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(board.passed_over(f"{VERIFIED}/{name}", error), file=sys.stderr)
        return ""
