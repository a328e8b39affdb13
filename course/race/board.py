"""The board: a folder that many may write to at once, each entry a folder of its own.

BOARD/TRACK/ENTRY/script.py    what was run
                 /entry.json   who, where, with which seeds, and what came of each
           /ENTRY.verified/verified-*.json   what running it again brought, whoever did so
"""

from __future__ import annotations

import getpass
import hashlib
import json
import os
import secrets
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any

from course.race import tracks
from course.runs.files import write_atomically
from course.runs.run import RECORDED, runs_root
from course.text import digits, wrapped

SCRIPT, ABOUT = "script.py", "entry.json"
SHIPPED_ENTRIES = ("plain", "one_cycle", "progressive", "fast")  # each a step from the one before
SHIPPED = RECORDED / "race"  # the entries that came with the course
DRAFT = ".draft-"
VERDICT = "referee.json"  # in a run's folder: what the referee says of it


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
        number = f"{tracks.plain(name)}-{now:%m%d-%H%M%S}-{sha256[:4]}{secrets.token_hex(2)}"
        moment = now.isoformat(timespec="seconds")
        return cls(number, track, name, by or _user(), moment, sha256, settings, gpus)

    @classmethod
    def from_json(cls, text: str) -> Entry:
        """An entry of any version: unknown fields are passed over."""
        values = json.loads(text)
        known = {each.name for each in fields(cls)}
        trials = [_trial(each) for each in values.get("trials", [])]
        values = {key: each for key, each in values.items() if key in known}
        seeds = tuple(values.get("seeds", ()))
        return cls(**values | {"trials": tuple(trials), "seeds": seeds})

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
        return wrapped(self.said)

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


def begin(board: Path, entry: Entry, text: str) -> Draft:
    """Store an entry's script, out of sight, before anything of it is run."""
    path = folder_for_all(board, entry.track) / f"{DRAFT}{entry.id}"
    path.mkdir()
    write_atomically(path / SCRIPT, text)
    return Draft(path, entry)


def folder_for_all(board: Path, *names: str) -> Path:
    """A folder in the board, made if it is not there, which whoever may write to the board may.

    It gets the board's mode before it gets its name: nobody meets it half made.
    """
    board.mkdir(parents=True, exist_ok=True)
    place = board
    for name in names:
        place = place / name
        if place.exists():
            continue
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=place.parent))
        new.chmod(board.stat().st_mode & 0o7777)
        try:
            new.rename(place)
        except OSError:  # somebody else was faster
            new.rmdir()
    return place


def post(draft: Draft, entry: Entry) -> Entry:
    """Put an entry on the board, whole: it is seen from one moment to the next."""
    write_atomically(draft.path / ABOUT, json.dumps(asdict(entry), indent=1))
    draft.path.rename(draft.path.with_name(entry.id))
    return entry


def drop(draft: Draft) -> None:
    """Forget an entry that could not be run."""
    shutil.rmtree(draft.path, ignore_errors=True)


def entries(
    board: Path, *, track: str | None = None, machine: str | None = None, shipped: bool = True
) -> list[Entry]:
    """The entries of a board, in their order.

    Args:
        machine: only those whose machine's name contains it.
        shipped: those that the course ships as well.
    """
    found = []
    for place in (SHIPPED, board) if shipped else (board,):
        for entry in filter(None, map(_read, sorted(place.glob(f"*/[!.]*/{ABOUT}")))):
            if track in (None, entry.track) and (machine or "").lower() in entry.machine.lower():
                found.append(entry)
    return in_order(found)


def _read(path: Path) -> Entry | None:
    """An entry of the board; None if its file is half copied, or of another version."""
    try:
        entry = Entry.from_json(path.read_text())
        tracks.get(entry.track)
        return entry
    except (OSError, ValueError, TypeError, AttributeError) as error:
        pass_over(path, error)
        return None


def pass_over(path: Path, error: Exception) -> None:
    """Say that a file of the board cannot be read: the others are shown nevertheless."""
    print(f"{path} is passed over: {type(error).__name__}: {error}", file=sys.stderr)


def in_order(of: Iterable[Entry]) -> list[Entry]:
    """By when they were entered, after the course's own, which ran beside each other."""

    def key(entry: Entry) -> tuple[int, str]:
        own = (SHIPPED / entry.track / entry.id).exists() and entry.name in SHIPPED_ENTRIES
        return (SHIPPED_ENTRIES.index(entry.name), "") if own else (99, entry.entered_at)

    return sorted(of, key=key)


def place_of(entry: Entry, board: Path) -> Path:
    """The folder of an entry: on the board, or among those that the course ships."""
    own = board / entry.track / entry.id
    return own if own.exists() else SHIPPED / entry.track / entry.id


def is_as_entered(entry: Entry, board: Path) -> bool:
    """Is the stored script the one that was entered? False as well where there is none."""
    try:
        return digest((place_of(entry, board) / SCRIPT).read_text()) == entry.sha256
    except (OSError, ValueError):
        return False


def get(name: str, board: Path) -> Entry:
    """The entry whose id is, or alone contains, `name`. Raises ValueError with the candidates."""
    known = {each.id: each for each in entries(board)}
    near = [key for key in known if name in key]
    if name in known or len(near) == 1:
        return known.get(name) or known[near[0]]
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
