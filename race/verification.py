"""Run an entry of the board again, with new seeds, and check that it still counts."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path

from course.lab import digits
from course.runs import runs_root, shared_files, write_atomically
from race import board
from race.entries import Entry, digest
from race.submission import draw_seeds, read_settings, run_all
from race.tracks import find_track

SAME_TIME = 0.1  # a smaller relative difference of times means nothing


@dataclass(frozen=True)
class Outcome:
    """The result of running an entry again, and a sentence about it."""

    holds: bool
    summary: str
    repeated: Entry


def verify(
    name: str,
    *,
    seeds: int | None = None,
    site: str = "local",
    to: str | Path | None = None,
    confirm: Callable[[str], object] = print,
) -> Outcome:
    """Run an entry's stored script with new seeds, and compare the results.

    Accuracy must hold on any machine; times are compared on the same machine only. The board's
    owner stores the outcome on it. The script runs with your rights, so read it first.

    Args:
        confirm: gets a sentence about the script, before it runs; an exception prevents that.

    Raises:
        ValueError: no such entry, or several; or its script is not the one that was entered.
    """
    folder = board.board_folder(to)
    entry = board.find_entry(name, folder)
    script = board.script_of(entry, folder)  # read once: its author could change it meanwhile
    if digest(script) != entry.sha256:
        raise ValueError(f"the script of {entry.id} is not what was entered: its SHA-256 differs")
    confirm(_introduction(entry, script))
    blank = {"trials": (), "seeds": (), "machine": "", "hardware": {}, "versions": {}}
    blank = replace(entry, **blank, settings=read_settings(script, entry.track))
    drawn = draw_seeds(seeds or find_track(entry.track).seeds)
    outcome = compare(entry, run_all(script, blank, drawn, site))
    store(outcome, entry, folder)
    return outcome


def _introduction(entry: Entry, script: str) -> str:
    """Store, without characters that hide lines, what will run; and say what it is."""
    copy = runs_root() / f"verify-{entry.id}.py"  # replaces no file of yours
    copy.parent.mkdir(parents=True, exist_ok=True)
    shown = (c if c.isprintable() or c in "\n\t" else f"\\x{ord(c):02x}" for c in script)
    write_atomically(copy, "".join(shown))
    size = f"{len(script.splitlines()):,} lines, {len(script.encode()):,} bytes"
    return f"{entry.id} is by {entry.author}, and will run as you. Read it first: {copy} ({size})"


def compare(entry: Entry, repeated: Entry) -> Outcome:
    """Compare an entry with its repetition."""
    if repeated.verdict:
        return Outcome(False, f"{entry.id} is not confirmed: {repeated.verdict}", repeated)
    verb, ratio = "is confirmed", repeated.seconds / entry.seconds if entry.seconds else 1
    if repeated.machine != entry.machine:
        time = f"on {repeated.machine}, whose times can't be compared with {entry.machine}'s"
    elif not entry.seconds:
        time = "and the entry has no time to compare"
    elif abs(ratio - 1) < SAME_TIME:
        time = "as before"
    else:
        time = f"{digits(ratio)} times as long as before"
        if ratio > 1:
            verb, time = "is not confirmed", f"{time}: was the machine busy?"
    summary = (
        f"{entry.id} {verb}: mean accuracy {repeated.top1:.2%} with "
        f"{len(repeated.trials)} new seeds, p = {repeated.p:.2g}; "
        f"{digits(repeated.seconds)} s, {time}"
    )
    return Outcome(verb == "is confirmed", summary, repeated)


def store(outcome: Outcome, entry: Entry, folder: Path) -> None:
    """Store an outcome on the board if it is yours; otherwise print why it is not stored."""
    now = datetime.now()
    content = {"at": now.isoformat(timespec="seconds"), "holds": outcome.holds}
    content |= {"said": outcome.summary, "entry": asdict(outcome.repeated)}
    name = f"{entry.id}.{entry.fingerprint}.{now:%Y%m%d-%H%M%S}.json"
    try:
        board.prepare(folder)
        if (owner := folder.stat().st_uid) != os.getuid():
            user = shared_files.user_name(owner)
            print(f"the outcome is not stored: only {user}, who owns the board, can do that")
            return
        board.publish(folder / board.VERIFIED / name, json.dumps(content, indent=1), folder)
    except OSError as error:
        print(f"the outcome could not be stored on the board: {error}")


def read_outcomes(entry: Entry, folder: Path) -> list[str]:
    """Return the outcomes that the board's owner stored for an entry, oldest first.

    An outcome belongs to one version of an entry: if its author changes a number, it is ignored.
    """
    try:
        names = sorted(name for name, _ in shared_files.statuses(folder, board.VERIFIED))
    except (OSError, ValueError):  # none yet, or not the owner's folder
        return []
    lines = []
    for name in names:
        if not name.startswith(f"{entry.id}.{entry.fingerprint}."):
            continue
        try:
            content = json.loads(shared_files.read_text(folder, board.VERIFIED, name))
            lines.append(
                shared_files.one_line(f"{content['at'].replace('T', ' ')}: {content['said']}")
            )
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(board.problem(f"{board.VERIFIED}/{name}", error), file=sys.stderr)
    return lines
