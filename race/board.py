"""The board: a folder to which many people can write at once. Each entry is a folder in it.

BOARD/TRACK/ENTRY/script.py    the script that ran
                 /entry.json   author, machine, seeds, and the result of each run
     /verified/ENTRY.*.json    results of running an entry again

The board's owner creates the tracks' folders and `verified`, to which only the owner writes.
Anyone can write anything into their own entry, so nothing in it is trusted: `shared_files`
reads it, and `Entry.from_json` checks it.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import stat
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict
from itertools import islice
from pathlib import Path

from course.runs import RECORDED, runs_root, shared_files, write_atomically
from race.entries import Entry, digest
from race.tracks import TRACKS

SCRIPT, ABOUT = "script.py", "entry.json"
COURSE_ENTRIES = ("plain", "one_cycle", "progressive", "fast")  # each adds to the one before
RECORDED_ENTRIES = RECORDED / "race"
VERIFIED, PAGE = "verified", "board.html"
MOST_ENTRIES, MOST_NAMES = 20, 20_000  # of each account on a track, and those looked at
NO_ACCOUNT = -1  # in place of the uids without an account
# Of ABOUT, which is validated slowly, 30 µs a value; the course's have 5 KiB and 200 values.
MOST_BYTES, MOST_VALUES = 32 * 1024, 1000


def board_folder(folder: str | Path | None = None) -> Path:
    """Return the board: the argument, else COURSE_BOARD, else race/ in the runs folder."""
    place = folder or os.environ.get("COURSE_BOARD") or runs_root() / "race"
    return Path(place).expanduser().resolve()


def prepare(board: Path) -> None:
    """Create the board; if it is yours, also its folders, and a page that others can't replace."""
    board.mkdir(parents=True, exist_ok=True)
    status = board.stat()
    if status.st_uid != os.getuid():
        return
    mode = stat.S_IMODE(status.st_mode)
    modes = dict.fromkeys(TRACKS, mode) | {VERIFIED: mode & 0o755}
    for name, mode in modes.items():
        with suppress(FileExistsError):
            (board / name).mkdir()
            (board / name).chmod(mode)  # on a shared board, others can write there, too
    page = board / PAGE
    if not page.is_file() or page.lstat().st_uid != os.getuid():
        with suppress(IsADirectoryError):  # no file can replace a folder
            publish(page, "", board)


def publish(path: Path, text: str, board: Path) -> None:
    """Write a file that everyone who can read the board can read, whatever the umask is."""
    write_atomically(path, text, mode=board.stat().st_mode & 0o644)


def begin(board: Path, track: str, script: str) -> Path:
    """Store an entry's script in a hidden folder, before it runs.

    Raises:
        ValueError: the script is too large, or others could change entries on this board.
    """
    if (size := len(script.encode())) > shared_files.LIMIT_BYTES:
        limit = shared_files.LIMIT_BYTES // 1024
        raise ValueError(f"the script has {size:,} bytes: expected at most {limit} KiB")
    prepare(board)
    _check_owners(board, track)
    draft = board / track / f".draft-{secrets.token_hex(8)}"
    draft.mkdir(mode=0o700)
    publish(draft / SCRIPT, script, board)
    return draft


def _check_owners(board: Path, track: str) -> None:
    """Raise ValueError if a different learner could replace entries."""
    owner = shared_files.user_name(board.stat().st_uid)
    try:
        next(shared_files.statuses(board, track), None)
    except FileNotFoundError as error:
        raise ValueError(
            f"{board} has no folder {track!r} yet. {owner}, who owns the board, creates it with: "
            f"course race --board {shlex.quote(str(board))}"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{board / track}: {error}") from error
    for folder in (board, board / track):
        mode = folder.stat().st_mode
        if mode & (stat.S_IWOTH | stat.S_IWGRP) and not mode & stat.S_ISVTX:
            raise ValueError(
                f"others can replace entries in {folder}, because it has no sticky bit. {owner} "
                f"sets it with: chmod +t {shlex.quote(str(folder))}"
            )


def post(draft: Path, entry: Entry) -> Entry:
    """Put a complete entry on the board, atomically."""
    board = draft.parents[1]
    publish(draft / ABOUT, json.dumps(asdict(entry), indent=1), board)
    draft.chmod(board.stat().st_mode & 0o755)
    draft.rename(draft.with_name(entry.id))
    return entry


def read_board(
    board: Path, *, track: str = "", machine: str = "", recorded: bool = True
) -> tuple[list[Entry], list[str]]:
    """Return the entries of a board, and for each unreadable one a line with the reason.

    Args:
        machine: only entries whose machine's name contains it.
        recorded: include the entries that come with the course.
    """
    entries, problems = [], []
    for root in (RECORDED_ENTRIES, board) if recorded else (board,):
        for folder in TRACKS:
            try:
                names, hidden = _newest(root, folder)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                problems.append(problem(folder, error))
                continue
            problems += hidden
            for name in names:
                try:
                    entries.append(_read(root, folder, name))
                except FileNotFoundError:  # not an entry, or removed in the meantime
                    continue
                except (OSError, ValueError, RecursionError) as error:
                    problems.append(problem(f"{folder}/{name}", error))
    matching = [
        entry
        for entry in entries
        if track in ("", entry.track) and machine.lower() in entry.machine.lower()
    ]
    return in_order(matching), problems


def _newest(root: Path, track: str) -> tuple[list[str], list[str]]:
    """Return the names of each account's newest entries, and a line for each that has more.

    The board's owner may have any number; all uids without an account count as one, because in a
    user namespace, anyone can write as 65,536 of them.
    """
    own: dict[int, list[tuple[int, str]]] = defaultdict(list)
    owner = root.stat().st_uid
    statuses = [*islice(shared_files.statuses(root, track), MOST_NAMES)]
    for name, status in statuses:
        if status and not name.startswith("."):
            own[status.st_uid].append((status.st_mtime_ns, name))
    for uid in [x for x in own if x != owner and not shared_files.account_name(x)]:
        own[NO_ACCOUNT] += own.pop(uid)
    names, problems = [], []
    if len(statuses) == MOST_NAMES:
        ((uid, count),) = Counter(status.st_uid for _, status in statuses if status).most_common(1)
        user = shared_files.one_line(shared_files.user_name(uid))
        problems.append(f"{track}: only {MOST_NAMES:,} names were read; {user} has {count:,}")
    for uid, entries in own.items():
        hidden = len(entries) - MOST_ENTRIES
        if hidden > 0 and uid != owner:
            name = shared_files.user_name(uid)
            user = "unknown accounts" if uid == NO_ACCOUNT else shared_files.one_line(name)
            problems.append(f"{track}: the {hidden:,} oldest entries of {user} are not shown")
            entries = sorted(entries)[hidden:]
        names += [name for _, name in entries]
    return sorted(names), problems


def _read(root: Path, track: str, name: str) -> Entry:
    text = shared_files.read_text(root, track, name, ABOUT, limit=MOST_BYTES)
    if text.count(",") > MOST_VALUES:
        raise ValueError(f"{ABOUT} has more than {MOST_VALUES:,} values")
    is_recorded = root == RECORDED_ENTRIES
    if not is_recorded and (RECORDED_ENTRIES / track / name).exists():
        raise ValueError("an entry that comes with the course has the same name")
    status = (root / track / name).lstat()
    if not is_recorded and status.st_mode & 0o022:
        raise ValueError("others can write to its folder, and may have moved it here")
    owner = "" if is_recorded else shared_files.user_name(status.st_uid)
    entry = Entry.from_json(text, track, name, owner)
    try:
        script_of(entry, root)
    except FileNotFoundError as error:
        raise ValueError(f"{SCRIPT} is missing") from error
    return entry


def problem(name: str, error: Exception) -> str:
    """Return a line that explains why something on the board is not shown."""
    reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    reason = getattr(error, "strerror", None) or reason
    return f"{shared_files.one_line(name)} is not shown: {shared_files.one_line(reason)}"


def read_entries(
    board: Path, *, track: str = "", machine: str = "", recorded: bool = True
) -> list[Entry]:
    """Return the entries of a board; print the problems of `read_board` on standard error."""
    entries, problems = read_board(board, track=track, machine=machine, recorded=recorded)
    for line in problems:
        print(line, file=sys.stderr)
    return entries


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """Sort entries: first those of the course, then by the time at which they were entered."""

    def key(entry: Entry) -> tuple[int, str]:
        is_recorded = _root_of(entry, Path()) == RECORDED_ENTRIES
        if is_recorded and entry.name in COURSE_ENTRIES:
            return COURSE_ENTRIES.index(entry.name), ""
        return len(COURSE_ENTRIES), entry.entered_at

    return sorted(entries, key=key)


def _root_of(entry: Entry, board: Path) -> Path:
    is_recorded = (RECORDED_ENTRIES / entry.track / entry.id).exists()
    return RECORDED_ENTRIES if is_recorded else board


def script_of(entry: Entry, board: Path) -> str:
    """Return an entry's stored script. Raises OSError or ValueError if it has none."""
    if _root_of(entry, board) == RECORDED_ENTRIES:  # many have the same script
        return shared_files.read_text(RECORDED_ENTRIES, "scripts", f"{entry.sha256}.py")
    return shared_files.read_text(board, entry.track, entry.id, SCRIPT)


def is_as_entered(entry: Entry, board: Path) -> bool:
    """Return whether the stored script is the one that was entered."""
    try:
        return digest(script_of(entry, board)) == entry.sha256
    except (OSError, ValueError):
        return False


def find_entry(name: str, board: Path) -> Entry:
    """Return the entry with this id, or the only one whose id contains `name`."""
    known = {f"{entry.track}/{entry.id}": entry for entry in read_entries(board)}
    near = [key for key in known if name in key]
    exact = [key for key in near if name in (key, known[key].id)]
    if len(exact or near) == 1:
        return known[(exact or near)[0]]
    reason = "several entries match" if near else "no entry is called"
    raise ValueError(f"{reason} {name!r} on {board}: {', '.join(near or known) or 'none yet'}")
