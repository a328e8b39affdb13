"""Predictions: what a learner expects, kept before it can be known."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course.checks.store import changing, now, read
from course.config import COMPILED, LADDER
from course.runs.run import all_runs
from course.text import digits, wrap_text

CLOSE = 0.2  # of a number that was measured: a prediction within it counts as right
BLANK = "replace ... by your number (a choice goes in quotes) and run the cell again"


@dataclass(frozen=True, repr=False)
class Prediction:
    """What a learner expected, of a run or as the answer to a question.

    `late`: a run of the rung had been launched before. `stands`: it cannot be changed any more.
    `measured`: what came out, once it is known.
    """

    key: str
    value: float | str
    note: str = ""
    rung: str = ""  # "": it is about no run
    made_at: str = ""
    late: bool = False
    stands: bool = True
    measured: float | str | None = None

    @property
    def text(self) -> str:
        """The value for people: a number in at most six digits, a choice as it was given."""
        return self.value if isinstance(self.value, str) else f"{self.value:.6g}"

    def __repr__(self) -> str:
        said = f"You predicted {self.text} for {self.key}" + (f" ({self.note})" * bool(self.note))
        if self.late:
            return wrap_text(f"{said}, after a run of {self.rung} had been launched.")
        if self.stands:
            return wrap_text(f"{said}. That is kept, right or wrong.")
        return wrap_text(f"{said}. You can change it until a run of {self.rung} is launched.")


def predict(
    key: str, value: Any, note: str = "", *, rung: str | None = None, choices: Sequence[str] = ()
) -> Prediction | None:
    """Store what you expect before you can know it. Once a run is launched, it stands.

    Args:
        key: what it is about, a rung of the ladder or the name of a question.
        value: a finite number, or one of the choices. `...`, the blank, stores nothing and
            gives back what is stored, if anything is.
        note: why, in your own words.
        rung: label of the runs that settle it, where `key` is not itself a rung. Without one
            it is a question, and its first answer stands at once.
        choices: the texts to choose from, where a number is not what is asked for.

    Raises:
        ValueError: an empty key, or a value that is no finite number, or none of the choices.
    """
    key = _text(key, "the key of a prediction")
    if value is ...:
        if (stored := prediction(key)) is None:
            print(f"{key}: {BLANK}")
        return stored
    value = _choice(key, value, choices) if choices else _number(key, value)
    if rung is None:
        rung = key if key in (*LADDER, *COMPILED) else ""
    stored = _store(key, value, str(note), rung)
    if stored.value != value:
        reason = f"a run of {stored.rung} has been launched" if stored.rung else "it was the first"
        print(f"{key}: your {stored.text} stands, since {reason}; {value!r} is not stored.")
    return stored


def _store(key: str, value: float | str, note: str, rung: str) -> Prediction:
    """What is stored for the key now: this, or an earlier prediction that stands."""
    launched = launched_rungs()
    with changing() as store:
        entry = store["predictions"].get(key)
        if entry is None or not _stands(entry, launched):
            store["predictions"][key] = entry = {
                "value": value,
                "note": note,
                "rung": rung,
                "made_at": now(),
                "late": rung in launched,
            }
    return as_stored(key, entry, launched)


def prediction(key: str) -> Prediction | None:
    """The prediction stored for a key, or None."""
    entry = read()["predictions"].get(key)
    return as_stored(key, entry, launched_rungs()) if entry else None


@dataclass(frozen=True, repr=False)
class Verdict:
    """A prediction beside what was measured. `right`: None where nothing was predicted."""

    said: str
    right: bool | None = None

    def __repr__(self) -> str:
        return self.said + {True: " ✓", False: " ✗", None: ""}[self.right]


def recall(key: str, measured: float | str, detail: str = "", *, how: str = "Measured") -> None:
    """Print a prediction's verdict, and keep what was measured beside it.

    Args:
        measured: a number, or one of the choices, of the prediction's kind.
        detail: what stands behind the measured value: its unit, or what shows it.
        how: the word for a value that was not measured, "Computed" for instance.

    Raises:
        ValueError: a text where a number was predicted, or a number where a text was.
    """
    settle(key, measured)
    stored = prediction(key)
    print(verdict(stored.value if stored else None, measured, detail=detail, how=how))


def settle(key: str, measured: float | str) -> None:
    """Keep what was measured beside the prediction; the latest counts. Without one: nothing."""
    measured = measured if isinstance(measured, str) else float(measured)
    with changing() as store:
        if (entry := store["predictions"].get(key)) is None:
            return
        if isinstance(entry["value"], str) != isinstance(measured, str):
            raise ValueError(
                f"{key}: predicted was {entry['value']!r}, and measured is {measured!r}: both must "
                f"be numbers, or both texts"
            )
        entry["measured"] = measured


def verdict(
    predicted: float | str | None,
    measured: float | str,
    *,
    low: float | None = None,
    high: float | None = None,
    detail: str = "",
    how: str = "Measured",
) -> Verdict:
    """What to say of a prediction. A number is right within CLOSE, or within its interval.

    Args:
        low, high: ends of the measured value's interval, where it has one.
        detail: unit or evidence, behind the measured value.
        how: the word for a value that was not measured, "Computed" for instance.
    """
    words = isinstance(measured, str)
    shown = measured if words else digits(measured)
    if not words and low is not None:
        shown += f" ({digits(low)} to {digits(high)})"
    if detail:
        shown += f", {detail}" if words else f" {detail}"
    if predicted is None:
        return Verdict(f"You made no prediction. {how}: {shown}")
    if words:
        return Verdict(f"You: {predicted}. {how}: {shown}", predicted == measured.lower())
    inside = low is not None and low <= predicted <= high
    far = ": within the interval" if inside else _distance(predicted, measured, detail)
    return Verdict(
        f"You: {digits(predicted)}. {how}: {shown}{far}",
        inside or abs(predicted - measured) <= CLOSE * abs(measured),
    )


def _distance(predicted: float, measured: float, unit: str) -> str:
    """How far the measured number lies from the predicted one, in words."""
    more = "more" if measured > predicted else "less"
    if unit.startswith("%"):
        return f": {digits(abs(measured - predicted))} points {more} than you said"
    if predicted == measured or predicted * measured <= 0:
        return ""
    factor = measured / predicted
    if not 0.5 < factor < 2:
        part = f"{digits(factor)} times" if factor > 1 else f"1/{digits(1 / factor)} of"
        return f": {part} what you said"
    if abs(factor - 1) < 0.005:
        return ": as you said"
    return f": {abs(factor - 1):.0%} {more} than you said"


def launched_rungs() -> set[str]:
    """Of which rungs a run was ever launched."""
    return {str(run.launched.get("rung", "")) for run in all_runs()} - {""}


def as_stored(key: str, entry: dict[str, Any], launched: set[str]) -> Prediction:
    """A prediction from its entry in the store."""
    kept = {field: entry[field] for field in ("value", "note", "rung", "made_at", "late")}
    measured = entry.get("measured")
    return Prediction(key, **kept, stands=_stands(entry, launched), measured=measured)


def _stands(entry: dict[str, Any], launched: set[str]) -> bool:
    return not entry["rung"] or entry["rung"] in launched


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} is {value!r}: it must be a text that is not empty")
    return value.strip()


def _choice(key: str, value: Any, choices: Sequence[str]) -> str:
    if str(value).strip().lower() not in choices:
        wanted = " or ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"your prediction for {key} is {value!r}: choose {wanted}, in quotes")
    return str(value).strip().lower()


def _number(key: str, value: Any) -> float:
    try:
        number = float(value)
        if isinstance(value, bool) or not math.isfinite(number):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            f"your prediction for {key} is {value!r}: give a finite number, as in 2.0"
        ) from None
    return int(value) if isinstance(value, numbers.Integral) else number
