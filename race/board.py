"""The board: a folder that many people can write to at once. Each entry is a folder in it.

BOARD/TRACK/ENTRY/script.py    what was run
                 /entry.json   who, where, with which seeds, and the result of each run
     /verified/ENTRY.*.json    results of running an entry again

The board's owner creates the folders of the tracks and `verified`, to which only the owner writes.
Anyone can write anything into their own entry, so nothing in it is trusted:
`race.shared_files` reads it, and `Entry.from_json` checks it.
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import re
import secrets
import shlex
import shutil
import stat
import statistics
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from course.runs.files import write_atomically
from course.runs.run import RECORDED, runs_root
from course.text import digits, one_line, wrap_text
from race import shared_files, tracks

SCRIPT, ABOUT = "script.py", "entry.json"
SHIPPED_ENTRIES = ("plain", "one_cycle", "progressive", "fast")  # each a step from the one before
SHIPPED = RECORDED / "race"  # the entries that came with the course
DRAFT = ".draft-"
VERIFIED = "verified"
VERDICT = "referee.json"  # in a run's folder: what the referee says of it

SCALAR = {"type": ["string", "number", "boolean", "null"], "maxLength": 500}
TABLE = {
    "type": "object",
    "additionalProperties": {"anyOf": [SCALAR, {"type": "array", "items": SCALAR}]},
}
TEXT = {"type": "string", "maxLength": 2000}
NAME = {"type": "string", "minLength": 1, "maxLength": 200}
AMOUNT = {"type": ["number", "null"], "minimum": 0, "maximum": 1e12}
SHARE = {"type": ["number", "null"], "minimum": 0, "maximum": 1}
SEED = {"type": "integer", "minimum": 0, "maximum": 2**63}
MARK = {"type": "array", "minItems": 3, "maxItems": 3, "prefixItems": [AMOUNT, AMOUNT, SHARE]}
TRIAL = {
    "type": "object",
    "required": ["seed", "run"],
    "properties": {
        **dict.fromkeys(("run", "failure", "weights", "validated_on"), TEXT),
        **dict.fromkeys(("ready_s", "joules"), AMOUNT),
        "seconds": AMOUNT | {"exclusiveMinimum": 0},
        "seed": SEED,
        "top1": SHARE,
        "way": {"type": "array", "items": MARK},
    },
    # A run that did not fail has a time and an accuracy.
    "if": {"properties": {"failure": {"const": ""}}},
    "then": {"properties": {"seconds": {"type": "number"}, "top1": {"type": "number"}}},
}
TRIAL["then"]["required"] = ["seconds", "top1"]
ENTRY = {
    "type": "object",
    "required": ["name", "by", "entered_at", "sha256", "settings"],
    "properties": {
        **dict.fromkeys(("name", "by", "entered_at", "sha256"), NAME),
        **dict.fromkeys(("machine", "git_sha"), TEXT),
        **dict.fromkeys(("settings", "hardware", "versions"), TABLE),
        "gpus": {"type": "integer", "minimum": 1, "maximum": 1024},
        "seeds": {"type": "array", "items": SEED},
        "trials": {"type": "array", "items": TRIAL, "maxItems": 1000},
    },
}


@dataclass(frozen=True)
class Trial:
    """One run of an entry. seconds: to the written weights; ready_s: of these before step one.

    way: seconds, joules and accuracy after each part of the training, the end among them.
    """

    seed: int
    run: str
    failure: str = ""  # why it does not count, in words
    top1: float | None = None
    seconds: float | None = None
    ready_s: float | None = None
    joules: float | None = None
    weights: str = ""  # the beginning of their file's SHA-256
    validated_on: str = ""  # and of the validation crops'
    way: tuple[tuple[float, float | None, float], ...] = ()


@dataclass(frozen=True, repr=False)
class Entry:
    """A script on a track, and what its runs brought."""

    id: str
    track: str
    name: str
    by: str
    entered_at: str
    sha256: str  # of the script
    settings: dict[str, Any]
    gpus: int = 1
    seeds: tuple[int, ...] = ()
    machine: str = ""
    hardware: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git_sha: str = ""
    trials: tuple[Trial, ...] = ()

    @classmethod
    def new(
        cls, track: str, name: str, by: str, text: str, settings: dict[str, Any], gpus: int
    ) -> Entry:
        """An entry before its first run."""
        now, sha256 = datetime.now(), digest(text)
        number = f"{tracks.plain(name)}-{now:%m%d-%H%M%S}-{sha256[:4]}{secrets.token_hex(4)}"
        moment = now.isoformat(timespec="seconds")
        return cls(number, track, name, by or _user(), moment, sha256, settings, gpus)

    @classmethod
    def from_json(cls, text: str, track: str, id: str) -> Entry:
        """Read an entry of any version: unknown fields are passed over.

        Args:
            track, id: the names of its folders, whatever the text says.

        Raises:
            ValueError, RecursionError: the text is not an entry; the message says why.
        """
        from jsonschema import Draft202012Validator  # only here: it takes a quarter of a second

        values = _cleaned(json.loads(text, parse_constant=_refuse))
        for error in Draft202012Validator(ENTRY).iter_errors(values):
            raise ValueError(f"{error.json_path}: {one_line(error.message)[-200:]}")
        known = {each.name for each in fields(cls)}
        trials = tuple(_trial(each) for each in values.get("trials", []))
        values = {key: each for key, each in values.items() if key in known}
        seeds = tuple(values.get("seeds", ()))
        own = {"trials": trials, "seeds": seeds, "track": track, "id": id}
        return cls(**values | own)

    @property
    def failure(self) -> str:
        """Why it cannot count whatever its accuracy, in words; "": nothing failed."""
        failed = [each for each in self.trials if each.failure]
        if failed:
            return f"seed {failed[0].seed}: {failed[0].failure}"
        left = [each.weights for each in self.trials if each.weights]
        same = len({*left}) < len(left)
        return "the seed changes nothing: two runs left the same weights" if same else ""

    @property
    def top1(self) -> float | None:
        """The mean accuracy over its seeds."""
        return self._over("top1", statistics.mean)

    @property
    def seconds(self) -> float | None:
        """The median time."""
        return self.middle("seconds")

    @property
    def joules(self) -> float | None:
        """The median energy; None on a machine that counts none."""
        return self.middle("joules")

    def middle(self, name: str) -> float | None:
        """The median of "seconds", "joules" or "ready_s" over its runs."""
        return self._over(name, statistics.median)

    @property
    def p(self) -> float:
        """How likely such accuracies were if their mean were no better than the target."""
        return chance([each.top1 for each in self.trials], tracks.get(self.track).target)

    @property
    def counts(self) -> bool:
        """Is its mean accuracy above the target, as surely as the race asks?"""
        return not self.verdict

    @property
    def verdict(self) -> str:
        """Why it does not count; "": it does."""
        if self.failure:
            return self.failure
        track = tracks.get(self.track)
        if len(self.trials) < track.seeds:
            return f"{len(self.trials)} of {track.seeds} runs were made"
        if self.p >= tracks.SURE:
            above = "below" if self.top1 <= track.target else "not surely above"
            return (
                f"the mean accuracy, {self.top1:.2%}, is {above} the target of {track.target:.0%} "
                f"(p = {self.p:.2g}, and less than {tracks.SURE:g} is needed)"
            )
        return ""

    @property
    def said(self) -> str:
        """What became of it, for people."""
        if self.verdict:
            return f"{self.id} does not count: {self.verdict}"
        joules = f", {digits(self.joules)} J" if self.joules else ""
        return (
            f"{self.id} counts: {digits(self.seconds)} s{joules} (medians), mean accuracy "
            f"{self.top1:.2%} over {len(self.trials)} seeds, p = {self.p:.2g}"
        )

    def __repr__(self) -> str:
        return wrap_text(self.said)

    def spread(self, name: str) -> tuple[float, float] | None:
        """The least and the most of "seconds", "joules", "ready_s" or "top1" over its runs."""
        values = self._values(name)
        return (min(values), max(values)) if values else None

    def _values(self, name: str) -> list[float]:
        values = [getattr(each, name) for each in self.trials]
        return [] if None in values else values

    def _over(self, name: str, mean: Any) -> float | None:
        values = self._values(name)
        return mean(values) if values else None


def _trial(values: dict[str, Any]) -> Trial:
    known = {each.name for each in fields(Trial)}
    kept = {key: each for key, each in values.items() if key in known}
    return Trial(**kept | {"way": tuple(map(tuple, values.get("way", ())))})


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _cleaned(value: Any) -> Any:
    """The same JSON value, without characters that could control a terminal."""
    if isinstance(value, str):
        return one_line(value)
    if isinstance(value, dict):
        return {one_line(key): _cleaned(each) for key, each in value.items()}
    return [_cleaned(each) for each in value] if isinstance(value, list) else value


def digest(text: str) -> str:
    """What tells a script from another: its SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a container's user without a name
        return "somebody"


def chance(values: Iterable[float | None], target: float) -> float:
    """p of Student's t-test, one-sided: of these values by luck, were their mean the target.

    1 where it cannot be told: of a single value, with one missing, or without any spread.
    """
    known = tuple(values)
    if None in known or len({*known}) < 2:
        return 1.0
    return _chance(known, target)


@cache  # a page asks for that of an entry a dozen times
def _chance(values: tuple[float, ...], target: float) -> float:
    from scipy import stats  # only here: it takes a second

    return float(stats.ttest_1samp(values, target, alternative="greater").pvalue)


@dataclass(frozen=True)
class Draft:
    """An entry that is being run: its folder is on the board, and not yet seen."""

    path: Path
    entry: Entry


def folder(given: str | Path | None = None) -> Path:
    """The board: what is given, else the variable COURSE_BOARD, else race/ in the runs folder."""
    named = given or os.environ.get("COURSE_BOARD") or runs_root() / "race"
    return Path(named).expanduser().resolve()


def prepare(board: Path) -> None:
    """Create the board, and in one of your own the folders that all entries and verdicts are in."""
    board.mkdir(parents=True, exist_ok=True)
    found = board.stat()
    if found.st_uid != os.getuid():
        return
    modes = dict.fromkeys(tracks.TRACKS, stat.S_IMODE(found.st_mode)) | {VERIFIED: 0o755}
    for name, mode in modes.items():
        with suppress(FileExistsError):
            (board / name).mkdir()
            (board / name).chmod(mode)  # of a shared board: others can write there, too


def begin(board: Path, entry: Entry, text: str) -> Draft:
    """Store an entry's script, out of sight, before any of it runs.

    Raises:
        ValueError: the script is too large, or others could change what is on this board.
    """
    if (size := len(text.encode())) > shared_files.LIMIT_BYTES:
        most = shared_files.LIMIT_BYTES // 1024
        raise ValueError(f"the script has {size:,} bytes: expected {most} KiB at most")
    prepare(board)
    _check(board, entry.track)
    path = board / entry.track / f"{DRAFT}{secrets.token_hex(8)}"
    path.mkdir(mode=0o700)
    write_atomically(path / SCRIPT, text)
    return Draft(path, entry)


def _check(board: Path, track: str) -> None:
    """Raise ValueError where another learner could replace an entry."""
    owner = shared_files.user_name(board.stat().st_uid)
    try:
        shared_files.list_folder(board, track)
    except FileNotFoundError as error:
        raise ValueError(
            f"{board} has no folder {track!r} yet. {owner}, who owns the board, creates it with: "
            f"course race --board {shlex.quote(str(board))}"
        ) from error
    except (OSError, ValueError) as error:
        raise ValueError(f"{board / track}: {error}") from error
    for place in (board, board / track):
        mode = place.stat().st_mode
        if mode & (stat.S_IWOTH | stat.S_IWGRP) and not mode & stat.S_ISVTX:
            raise ValueError(
                f"others can replace entries in {place}, because it has no sticky bit. {owner} "
                f"sets it with: chmod +t {shlex.quote(str(place))}"
            )


def post(draft: Draft, entry: Entry) -> Entry:
    """Put a complete entry on the board: it appears from one moment to the next."""
    write_atomically(draft.path / ABOUT, json.dumps(asdict(entry), indent=1))
    draft.path.chmod(0o755)
    draft.path.rename(draft.path.with_name(entry.id))
    return entry


def drop(draft: Draft) -> None:
    """Forget an entry that could not be run."""
    shutil.rmtree(draft.path, ignore_errors=True)


def entries(
    board: Path, *, track: str | None = None, machine: str | None = None, shipped: bool = True
) -> list[Entry]:
    """Return the entries of a board, in their order; name each bad one on standard error.

    Args:
        machine: only those whose machine's name contains it.
        shipped: those that the course ships as well.
    """
    found, problems = read(board, track=track, machine=machine, shipped=shipped)
    for problem in problems:
        print(problem, file=sys.stderr)
    return found


def read(
    board: Path, *, track: str | None = None, machine: str | None = None, shipped: bool = True
) -> tuple[list[Entry], list[str]]:
    """Return the entries of a board, and for each bad one a line with the reason."""
    found, problems = [], []
    for place in (SHIPPED, board) if shipped else (board,):
        for each in _scan(place):
            if isinstance(each, str):
                problems.append(each)
            elif track in (None, each.track) and (machine or "").lower() in each.machine.lower():
                found.append(each)
    return in_order(found), problems


def _scan(root: Path) -> Iterator[Entry | str]:
    """Each entry below a folder; in place of a bad one, a line with the reason."""
    for track in tracks.TRACKS:
        try:
            names = shared_files.list_folder(root, track)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            yield passed_over(track, error)
            continue
        for name in names:
            if name.startswith("."):
                continue
            try:
                yield _read(root, track, name)
            except FileNotFoundError:  # no entry, or one that has just been removed
                continue
            except (OSError, ValueError, RecursionError) as error:
                yield passed_over(f"{track}/{name}", error)


def _read(root: Path, track: str, name: str) -> Entry:
    text = shared_files.read_text(root, track, name, ABOUT)
    if not re.fullmatch(r"[\w.-]+", name):
        raise ValueError("its folder's name has characters other than letters, digits and _.-")
    if root != SHIPPED and (SHIPPED / track / name).exists():
        raise ValueError("an entry that the course ships has the same name")
    try:
        shared_files.read_text(root, track, name, SCRIPT)
    except FileNotFoundError as error:
        raise ValueError(f"{SCRIPT} is missing") from error
    return Entry.from_json(text, track, name)


def passed_over(name: str, error: Exception) -> str:
    """A line that says why something on the board is not shown."""
    why = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
    if isinstance(error, OSError):
        why = error.strerror or why
    return f"{one_line(name)} is passed over: {one_line(why)}"


def in_order(of: Iterable[Entry]) -> list[Entry]:
    """By when they were entered, after the course's own, which ran beside each other."""

    def key(entry: Entry) -> tuple[int, str]:
        own = (SHIPPED / entry.track / entry.id).exists() and entry.name in SHIPPED_ENTRIES
        return (SHIPPED_ENTRIES.index(entry.name), "") if own else (99, entry.entered_at)

    return sorted(of, key=key)


def root_of(entry: Entry, board: Path) -> Path:
    """Return where an entry's track is: on the board, or among what the course ships."""
    return SHIPPED if (SHIPPED / entry.track / entry.id).exists() else board


def script_of(entry: Entry, board: Path) -> str:
    """Return an entry's stored script. Raises OSError or ValueError where it has none."""
    return shared_files.read_text(root_of(entry, board), entry.track, entry.id, SCRIPT)


def is_as_entered(entry: Entry, board: Path) -> bool:
    """Is the stored script the one that was entered? False as well where there is none."""
    try:
        return digest(script_of(entry, board)) == entry.sha256
    except (OSError, ValueError):
        return False


def fingerprint(entry: Entry) -> str:
    """Return what a verdict is about: it changes if anything in the entry does."""
    return digest(json.dumps(asdict(entry)))[:16]


def get(name: str, board: Path) -> Entry:
    """The entry whose id is, or alone contains, `name`. Raises ValueError with the candidates."""
    known = {f"{each.track}/{each.id}": each for each in entries(board)}
    near = [key for key in known if name in key]
    exact = [key for key in near if name in (key, known[key].id)]
    if len(exact or near) == 1:
        return known[(exact or near)[0]]
    listed = ", ".join(near or known) or "none yet"
    problem = "several entries match" if near else "no entry is called"
    raise ValueError(f"{problem} {name!r} on {board}: {listed}")


def ranked(of: Iterable[Entry], by: str = "seconds") -> list[Entry]:
    """Those that count and have a value, the least of "seconds" or "joules" first."""
    kept = [each for each in of if each.counts and getattr(each, by) is not None]
    return sorted(kept, key=lambda each: getattr(each, by))


def judged(of: Iterable[Entry], by: str = "seconds") -> list[Entry]:
    """Those that are ranked, and after them those that were judged and missed the target."""
    found = list(of)
    missed = [
        each
        for each in found
        if not each.counts and not each.failure and None not in (each.top1, getattr(each, by))
    ]
    return ranked(found, by) + missed
