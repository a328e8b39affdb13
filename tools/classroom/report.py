"""What a class's files show: who is stuck, on what, and what the class predicted."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta
from typing import Any

from course.checks import discovery
from course.checks.store import FAILED, NOISY, PASSED, UNMEASURABLE
from course.jobs import slurm_partitions
from course.runs.shared_files import one_line
from course.text import digits
from tools.classroom.drop_box import Learner

GIVEN = "given"  # filled by `course exercises --upto`: neither solved nor stuck
SIGNS = {"open": "·", "edited": "~", "solved": "~", GIVEN: "g", PASSED: "✓", FAILED: "✗"}
SIGNS |= {NOISY: "?", UNMEASURABLE: "?"}
LEGEND = "✓ passed  ✗ failed  ? not measurable  ~ edited  g given  · open"
RECENT = timedelta(minutes=45)
MOST_BINS = 8
MOST_COLUMNS = 18  # of exercises, next to each other
SQUEUE_S = 2  # how long Slurm may take to answer


@dataclass(frozen=True)
class Cell:
    """What a learner did with an exercise; `minutes` since it began to fail, if it fails."""

    exercise: str
    state: str
    tries: int = 0
    at: datetime | None = None
    minutes: float | None = None
    cause: str = ""

    @property
    def sign(self) -> str:
        return SIGNS[self.state]


@dataclass(frozen=True)
class Cause:
    """An exercise with the number of learners by state, and its most frequent cause of failure."""

    exercise: str
    lab: str
    title: str
    passed: int
    failed: int
    given: int
    tries: float  # median of those who tried
    cause: str
    learners: int  # whose latest failure had this cause


@dataclass(frozen=True)
class Bar:
    """Predictions of a histogram's bar; `is_measured`: the measured value is in it."""

    label: str
    count: int
    is_measured: bool


@dataclass(frozen=True)
class Histogram:
    """What a class predicted; `measured` is the median of the learners' values, "" if unknown."""

    key: str
    count: int
    bars: tuple[Bar, ...]
    measured: str
    measurements: int


def cell(learner: Learner, exercise: str) -> Cell:
    """Return what a learner did with an exercise; a check counts more than the script's text."""
    state, tried = learner.todos.get(exercise, "open"), learner.checks.get(exercise)
    if tried is None:
        return Cell(exercise, state)
    state = GIVEN if state == GIVEN else tried.state
    is_failing = state == FAILED and tried.since
    minutes = minutes_since(tried.since) if is_failing else None
    return Cell(exercise, state, tried.tries, tried.at, minutes, tried.cause)


def minutes_since(at: datetime) -> float:
    """Return the minutes that have passed; 0 for a time that another clock has already reached."""
    return max(0.0, (datetime.now().astimezone() - at).total_seconds() / 60)


def age(minutes: float) -> str:
    """Return a duration in words, "3 min" or "2 h"."""
    if minutes < 100:
        return f"{minutes:.0f} min"
    return f"{minutes / 60:.0f} h" if minutes < 48 * 60 else f"{minutes / 1440:.0f} days"


def stuck_on(learner: Learner) -> Cell | None:
    """Return the failing exercise with most tries, the longest-failing of several; None if none.

    One that was last tried more than RECENT before, and that others followed, was left aside.
    """
    cells = [cell(learner, name) for name in learner.checks]
    failing = [x for x in cells if x.state == FAILED]
    latest = max((x.at for x in failing), default=None)
    failing = [x for x in failing if latest - x.at < RECENT]
    return max(failing, key=lambda x: (x.tries, x.minutes or 0), default=None)


def begun(learners: Sequence[Learner], most: int | None = None) -> dict[str, list[str]]:
    """Return the exercises that anyone has begun, by the label of their lab, in their order.

    Args:
        most: only so many of them, those that were checked last.
    """
    touched = {name: 0.0 for learner in learners for name in learner.todos}
    for learner in learners:
        for name, tried in learner.checks.items():
            touched[name] = max(touched.get(name, 0.0), tried.at.timestamp())
    touched = {*sorted(touched, key=lambda name: -touched[name])[:most]}
    labs = {lab.label: [x for x in lab.all_checks if x in touched] for lab in discovery.labs()}
    return {label: names for label, names in labs.items() if names}


def in_order(learners: Iterable[Learner]) -> list[Learner]:
    """Sort learners: raised hands, the longest first; then those who are stuck, by tries."""

    def key(learner: Learner) -> tuple[Any, ...]:
        hand, stuck = learner.hand, stuck_on(learner)
        waited = hand.at.timestamp() if hand else 0
        amount = (-stuck.tries, -(stuck.minutes or 0)) if stuck else (0, 0)
        return hand is None, waited, *amount, learner.name

    return sorted(learners, key=key)


def causes(learners: Sequence[Learner]) -> list[Cause]:
    """Return the exercises that were tried, the one that most learners fail first."""
    rows = []
    for lab in discovery.labs():
        titles = {name: x.title for name, x in {**lab.exercises, **lab.functions}.items()}
        for name, title in (titles | lab.file_checks).items():
            cells = [cell(learner, name) for learner in learners]
            states = Counter(x.state for x in cells)
            tries = [x.tries for x in cells if x.tries]
            common = Counter(x.cause for x in cells if x.cause).most_common(1) or [("", 0)]
            if tries:
                counts = [states[word] for word in (PASSED, FAILED, GIVEN)]
                median = statistics.median(tries)
                rows.append(Cause(name, lab.label, title, *counts, median, *common[0]))
    return sorted(rows, key=lambda row: -row.failed)


def waiting_jobs(users: Sequence[str]) -> dict[str, str]:
    """Return users' numbers of waiting jobs with the reasons; {} if no Slurm answers soon."""
    names = [user for user in users if "," not in user]
    options = ("--noheader", "--states=PENDING", f"--user={','.join(names)}", "--format=%u|%r")
    done = slurm_partitions.ask("squeue", *options, timeout_s=SQUEUE_S) if names else None
    if not done or done.returncode:
        return {}
    reasons: dict[str, Counter[str]] = {}
    for user, reason in slurm_partitions.columns(done.stdout, 2):
        reasons.setdefault(user.strip(), Counter())[one_line(reason.strip())] += 1
    return {
        user: ", ".join(f"{count} ({reason})" for reason, count in counts.items())
        for user, counts in reasons.items()
    }


def histograms(learners: Sequence[Learner]) -> list[Histogram]:
    """Return a histogram for each prediction, the one that most learners made first."""
    keys = Counter(key for learner in learners for key in learner.predictions)
    return [histogram(learners, key) for key, _ in keys.most_common()]


def histogram(learners: Sequence[Learner], key: str) -> Histogram:
    """Return how the predictions of a key are distributed; its site may be left out if it is one.

    Raises:
        ValueError: no one predicted it; the message lists what was.
    """
    known = sorted({key for learner in learners for key in learner.predictions})
    of_sites = [name for name in known if name.rpartition(" on ")[0] == key]
    if key not in known and len(of_sites) == 1:
        (key,) = of_sites
    guesses = [learner.predictions[key] for learner in learners if key in learner.predictions]
    if not guesses:
        raise ValueError(f"no one predicted {key!r}: there are {', '.join(known) or 'none yet'}")
    is_text = Counter(isinstance(guess.value, str) for guess in guesses).most_common(1)[0][0]
    guesses = [guess for guess in guesses if isinstance(guess.value, str) == is_text]
    values = [guess.value for guess in guesses]
    measured = [guess.measured for guess in guesses if guess.measured is not None]
    if is_text:
        result = Counter(measured).most_common(1)[0][0] if measured else None
        counts = Counter(values)
        labels = dict.fromkeys([*([result] if result else []), *sorted(counts, key=str.lower)])
        bars = [Bar(label, counts[label], label == result) for label in labels]
    else:
        result = statistics.median(measured) if measured else None
        bars = _bars(values, result)
    shown = "" if result is None else result if is_text else digits(result)
    return Histogram(key, len(values), tuple(bars), shown, len(measured))


def _bars(values: Sequence[float], measured: float | None) -> list[Bar]:
    """Return bars of equal width; values far from all others are in the first or the last one."""
    known = sorted(values) + [measured] * (measured is not None)
    low, high = _fences(known)
    inside = [x for x in known if low <= x <= high]
    step = _round_step((max(inside) - min(inside)) / MOST_BINS)
    first, last = (math.floor(x / step) for x in (min(inside), max(inside)))

    def place_of(value: float) -> int:
        return min(max(math.floor(value / step), first - 1), last + 1)

    counts = Counter(map(place_of, values))
    at = None if measured is None else place_of(measured)
    bars = []
    shown = [first, last, *counts, first if at is None else at]
    for place in range(min(shown), max(shown) + 1):
        ends = [digits(x * step) for x in (place, place + 1)]
        label = " to ".join(ends)
        if not first <= place <= last:
            label = f"below {ends[1]}" if place < first else f"from {ends[0]}"
        bars.append(Bar(label, counts[place], place == at))
    return bars


def _fences(values: Sequence[float]) -> tuple[float, float]:
    """Return the ends of Tukey's far fences: beyond them, a value would hide all others."""
    if len(values) < 4:
        return min(values), max(values)
    low, _, high = statistics.quantiles(values, method="inclusive")
    return low - 3 * (high - low), high + 3 * (high - low)


def _round_step(width: float) -> float:
    """Return the next larger of 1, 2 or 5 times a power of ten."""
    if width <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(width))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= width)


def summary(learners: Sequence[Learner], jobs: dict[str, str]) -> list[dict[str, Any]]:
    """Return a row for each learner, in the order in which to look after them."""
    rows = []
    for learner in in_order(learners):
        cells = [cell(learner, name) for name in {*learner.todos, *learner.checks}]
        stuck = stuck_on(learner)
        rows.append(
            {
                "learner": learner.name,
                "passed": sum(x.state == PASSED for x in cells),
                "last": age(minutes_since(learner.sent_at)),
                "stuck on": stuck.exercise if stuck else "",
                "tries": stuck.tries if stuck else "",
                "for": age(stuck.minutes or 0) if stuck else "",
                "waiting jobs": jobs.get(learner.name, ""),
                "cause": stuck.cause if stuck else "",
            }
        )
    return rows


def as_values(
    learners: Sequence[Learner], problems: Sequence[str], jobs: dict[str, str]
) -> dict[str, Any]:
    """Return everything as values for JSON."""
    return {
        "learners": [
            asdict(learner) | {"waiting_jobs": jobs.get(learner.name, "")} for learner in learners
        ],
        "exercises": [asdict(cause) for cause in causes(learners)],
        "predictions": [asdict(chart) for chart in histograms(learners)],
        "problems": list(problems),
    }


def as_csv(learners: Sequence[Learner]) -> str:
    """Return a line for each learner and exercise that anyone has begun."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["learner", "lab", "exercise", "state", "tries", "at", "failing_min", "cause"])
    exercises = begun(learners)
    for learner in learners:
        for lab, names in exercises.items():
            for x in (cell(learner, name) for name in names):
                at = x.at.isoformat() if x.at else ""
                minutes = "" if x.minutes is None else round(x.minutes)
                row = [learner.name, lab, x.exercise, x.state, x.tries, at, minutes, x.cause]
                rows.writerow([_not_a_formula(value) for value in row])
    return text.getvalue()


def _not_a_formula(value: Any) -> Any:
    """Return a value that a spreadsheet shows, instead of computing what a learner wrote."""
    if not isinstance(value, str):
        return value
    value = value.replace(";", ",")  # in many languages, a spreadsheet begins a new cell there
    return f"'{value}" if value.startswith(("=", "+", "-", "@")) else value
