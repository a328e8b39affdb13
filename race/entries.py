"""Entries of the race: a script on a track, the results of its runs, and whether it counts."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import secrets
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import datetime
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from course import wrap_text
from course.lab import digits
from course.runs import shared_files
from race import tracks

SCHEMA = Path(__file__).with_name("entry.schema.json")
MOST_SEEDS = 20  # of an entry
MOST_ID = 120  # bytes; the course's have 36, and a file system's names 255
VERDICT = "referee.json"  # in a run's folder: what the referee writes


@dataclass(frozen=True)
class Trial:
    """One run of an entry.

    Attributes:
        failure: why the run does not count; empty if it does.
        seconds: from the script's start to the written weights.
        ready_s: the part of `seconds` before the first training step.
        weights: the beginning of the SHA-256 of the weights' file.
        validated_on: the beginning of the SHA-256 of the validation crops.
        way: seconds, joules and accuracy after each part of the training, and at the end.
    """

    seed: int
    run: str
    failure: str = ""
    top1: float | None = None
    seconds: float | None = None
    ready_s: float | None = None
    joules: float | None = None
    weights: str = ""
    validated_on: str = ""
    way: tuple[tuple[float, float | None, float], ...] = ()


@dataclass(frozen=True, repr=False)
class Entry:
    """A script on a track, and the results of its runs.

    Attributes:
        by: what its author wrote, which may be anyone's name.
        sha256: the script's.
        owner: the account whose folder it is; "" for entries of the course.
    """

    id: str
    track: str
    name: str
    by: str
    entered_at: str
    sha256: str
    settings: dict[str, Any]
    gpus: int = 1
    seeds: tuple[int, ...] = ()
    machine: str = ""
    hardware: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    git_sha: str = ""
    trials: tuple[Trial, ...] = ()
    owner: str = ""

    @classmethod
    def new(
        cls, track: str, name: str, by: str, script: str, settings: dict[str, Any], gpus: int
    ) -> Entry:
        """Create an entry before its first run; raise ValueError if a text is too long."""
        now, sha256 = datetime.now(), digest(script)
        suffix = f"{now:%m%d-%H%M%S}-{sha256[:4]}{secrets.token_hex(4)}"
        entered_at = now.isoformat(timespec="seconds")
        identity = f"{tracks.file_name(name)}-{suffix}"
        by = by or shared_files.user_name(os.getuid())
        entry = cls(identity, track, name, by, entered_at, sha256, settings, gpus)
        cls.from_json(json.dumps(asdict(entry)), track, identity)  # or no board would show it
        return entry

    @classmethod
    @lru_cache(maxsize=1024)  # validating takes up to 0.03 s, and a live page reads it often
    def from_json(cls, text: str, track: str, id: str, owner: str = "") -> Entry:
        """Read an entry of any version; unknown fields are ignored.

        Args:
            track, id, owner: of the entry's folders; those in the text are ignored. The id is
                part of names of files.

        Raises:
            ValueError, RecursionError: the text is not an entry.
        """
        from jsonschema import Draft202012Validator  # imported here: it takes 0.25 s

        if not re.fullmatch(r"[\w.-]+", id) or len(id.encode()) > MOST_ID:
            raise ValueError(f"its id needs letters, digits and _.-, and at most {MOST_ID} bytes")
        values = _printable(json.loads(text, parse_constant=_refuse_constant))
        for error in Draft202012Validator(json.loads(SCHEMA.read_text())).iter_errors(values):
            raise ValueError(f"{error.json_path}: {shared_files.one_line(error.message[-200:])}")
        trials = tuple(
            Trial(**_known(Trial, trial) | {"way": tuple(map(tuple, trial.get("way", ())))})
            for trial in values.get("trials", ())
        )
        folders = {"track": track, "id": id, "owner": owner}
        lists = {"trials": trials, "seeds": tuple(values.get("seeds", ()))}
        return cls(**_known(cls, values) | folders | lists)

    @property
    def failure(self) -> str:
        """Why the entry cannot count, whatever its accuracy; empty if no run failed."""
        for trial in self.trials:
            if trial.failure:
                return f"seed {trial.seed}: {trial.failure}"
        weights = [trial.weights for trial in self.trials if trial.weights]
        same = len(set(weights)) < len(weights)
        return "the seed changes nothing: two runs have the same weights" if same else ""

    @property
    def top1(self) -> float | None:
        """Mean accuracy over the seeds."""
        return self._average("top1", statistics.mean)

    @property
    def std(self) -> float | None:
        """Standard deviation of the accuracy over the seeds; None with fewer than two."""
        return self._average("top1", statistics.stdev) if len(self.trials) > 1 else None

    @property
    def seconds(self) -> float | None:
        """Median time."""
        return self.median("seconds")

    @property
    def joules(self) -> float | None:
        """Median energy; None on a machine without an energy counter."""
        return self.median("joules")

    def median(self, name: str) -> float | None:
        """Return the median of "seconds", "joules" or "ready_s" over the runs."""
        return self._average(name, statistics.median)

    @cached_property
    def p(self) -> float:
        """The chance of such accuracies if their mean were only the target (one-sided t-test).

        1 if it cannot be computed: with one run, a missing accuracy, or equal accuracies.
        """
        values = [trial.top1 for trial in self.trials]
        if None in values or len(set(values)) < 2:
            return 1.0
        from scipy import stats  # imported here: it takes a second

        target = tracks.find_track(self.track).target
        return float(stats.ttest_1samp(values, target, alternative="greater").pvalue)

    @property
    def counts(self) -> bool:
        """Whether the mean accuracy exceeds the target with p < 0.01, and no run failed."""
        return not self.verdict

    @property
    def verdict(self) -> str:
        """Why the entry does not count; empty if it does."""
        if self.failure:
            return self.failure
        track = tracks.find_track(self.track)
        if len(self.trials) < track.seeds:
            return f"only {len(self.trials)} of {track.seeds} runs are complete"
        if self.p >= tracks.SIGNIFICANCE:
            place = "below" if self.top1 <= track.target else "not significantly above"
            p = math.ceil(1e4 * self.p) / 1e4  # rounded up, or 0.0104 would be 0.01
            return (
                f"the mean accuracy, {self.top1:.2%}, is {place} the target of {track.target:.0%} "
                f"(p = {p:g}; it must be less than {tracks.SIGNIFICANCE:g})"
            )
        return ""

    @property
    def summary(self) -> str:
        """The result in one sentence."""
        if self.verdict:
            return f"{self.id} does not count: {self.verdict}"
        joules = f", {digits(self.joules)} J" if self.joules else ""
        return (
            f"{self.id} counts: {digits(self.seconds)} s{joules} (medians), mean accuracy "
            f"{self.top1:.2%} over {len(self.trials)} seeds, p = {self.p:.2g}"
        )

    def __repr__(self) -> str:
        return wrap_text(self.summary)

    def spread(self, name: str) -> tuple[float, float] | None:
        """Return the lowest and highest "seconds", "joules", "ready_s" or "top1" of the runs."""
        return self._average(name, lambda values: (min(values), max(values)))

    def _average(self, name: str, average: Callable[[Sequence[float]], Any]) -> Any:
        values = [getattr(trial, name) for trial in self.trials]
        return average(values) if values and None not in values else None

    @property
    def fingerprint(self) -> str:
        """A hash of what the author wrote. A verification is only valid for this entry."""
        written = {name: value for name, value in asdict(self).items() if name != "owner"}
        return digest(json.dumps(written))[:16]

    @property
    def author(self) -> str:
        """The account that the entry belongs to, with the author's name if that is different.

        The account comes first: a long name could push it out of sight.
        """
        return self.by if self.owner in ("", self.by) else f"{self.owner} (signs as {self.by})"


def ranked(entries: Iterable[Entry], by: str = "seconds") -> list[Entry]:
    """Return the entries that count and have a value, lowest "seconds" or "joules" first."""
    counting = [entry for entry in entries if entry.counts and getattr(entry, by) is not None]
    return sorted(counting, key=lambda entry: getattr(entry, by))


def digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _known(cls: type, values: dict[str, Any]) -> dict[str, Any]:
    names = {field.name for field in fields(cls)}
    return {name: value for name, value in values.items() if name in names}


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _printable(value: Any) -> Any:
    """Return a JSON value without characters that could control a terminal."""
    if isinstance(value, str):
        return shared_files.one_line(value)
    if isinstance(value, dict):
        return {shared_files.one_line(key): _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value
