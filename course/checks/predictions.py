"""Store what a learner predicts before measuring it, and compare it with the result."""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from course.checks.shared_progress import changing
from course.checks.store import NOISY, now, read
from course.config import COMPILED, HALF_FORMATS, LADDER, RUNGS, resolve_half
from course.runs import recordings
from course.runs.ratio import Ratio, few_steps
from course.runs.run import Run, all_runs
from course.text import digits, wrap_text

LOCAL = "local"  # the default site
CLOSE = 0.2  # relative: a predicted number this close to the measured one is right
BLANK = "replace ... with your number (or a choice in quotes) and run the cell again"


@dataclass(frozen=True, repr=False)
class Prediction:
    """A learner's prediction about a run or a question.

    `late`: a run of the rung was launched before the prediction. `stands`: it can no longer be
    changed. `measured`: the result, once it is known.
    """

    key: str
    value: float | str
    note: str = ""
    rung: str = ""  # "": the prediction is not about a run
    made_at: str = ""
    late: bool = False
    stands: bool = True
    measured: float | str | None = None

    @property
    def text(self) -> str:
        """Return the value for display: a number with up to six digits, or the choice."""
        return self.value if isinstance(self.value, str) else f"{self.value:.6g}"

    def __repr__(self) -> str:
        text = f"You predicted {self.text} for {self.key}" + (f" ({self.note})" * bool(self.note))
        if self.late:
            return wrap_text(f"{text}, after a run of {self.rung} was launched.")
        if self.stands:
            return wrap_text(f"{text}. It is stored, right or wrong.")
        return wrap_text(f"{text}. You can change it until you launch a run of {self.rung}.")


def predict(
    key: str,
    value: Any,
    note: str = "",
    *,
    rung: str | None = None,
    choices: Sequence[str] = (),
    site: str = LOCAL,
) -> Prediction | None:
    """Store what you expect. You can change a prediction until you launch a run of its rung.

    Args:
        key: a rung of the ladder, or the name of a question.
        value: a finite number, or one of the choices. With `...`, the blank, nothing is stored,
            and an earlier prediction is returned if there is one.
        note: the reason, in your own words.
        rung: label of the runs that decide it, if `key` is not a rung itself. Without one the
            prediction answers a question, and the first answer counts.
        choices: the texts to choose from, for a prediction that is not a number.
        site: where the runs that decide it compute. A prediction is for one site, because another
            one, such as a recorded GPU, gives another result.

    Raises:
        ValueError: an empty key, or a value that is not a finite number or not one of the choices.
    """
    key = _text(key, "the key of a prediction")
    if value is ...:
        if (stored := prediction(key, site)) is None:
            print(f"{key}: {BLANK}")
        return stored
    value = _choice(key, value, choices) if choices else _number(key, value)
    if rung is None:
        rung = key if key in (*LADDER, *COMPILED) else ""
    stored = _store(_name(key, site), value, str(note), rung, site)
    if stored.value != value:
        reason = f"a run of {stored.rung} was launched" if stored.rung else "it was the first"
        reason = "its result is known" if stored.measured is not None else reason
        print(f"{key}: your {stored.text} counts because {reason}; {value!r} is not stored.")
    return stored


def _store(key: str, value: float | str, note: str, rung: str, site: str) -> Prediction:
    """Store a prediction unless an earlier one can no longer change; return the stored one."""
    launched = launched_rungs()
    with changing() as store:
        entry = store["predictions"].get(key)
        if entry is None or not _stands(entry, launched):
            store["predictions"][key] = entry = {
                "value": value,
                "note": note,
                "rung": rung,
                "made_at": now(),
                "late": (rung, site) in launched,
                "site": site,
            }
    return as_stored(key, entry, launched)


def prediction(key: str, site: str = LOCAL) -> Prediction | None:
    """Return the prediction stored for a key and a site, or None."""
    entry = read()["predictions"].get(_name(key, site))
    return as_stored(_name(key, site), entry, launched_rungs()) if entry else None


def _name(key: str, site: str) -> str:
    """Return the name under which a prediction is stored and shown."""
    return key if site == LOCAL else f"{key} on {site}"


def site_of(run: Run) -> str:
    """Return the site whose predictions a run decides."""
    return recordings.SITE + run.recorded_on if run.is_recorded else run.launched.get("site", LOCAL)


def key_of(run: Run) -> str:
    """Return the key of the prediction that a run decides: its rung, in the rung's own format.

    A run of the rung in a different format, such as amp in fp16 where the machine's own format is
    bf16, decides the prediction that has this format as its key.
    """
    label, precision = run.config.rung, run.config.precision
    wanted = RUNGS[label].precision if label in RUNGS else precision
    if wanted == "half" and run.requested_config.precision != "half":
        units = run.record.hardware.get("half_units") or HALF_FORMATS[:1]
        wanted = resolve_half(units, scales_loss=run.config.scales_loss)
    return label if wanted in ("half", precision) else precision


@dataclass(frozen=True, repr=False)
class Verdict:
    """A prediction next to the measured value. `right`: None without a prediction."""

    text: str
    right: bool | None = None

    def __repr__(self) -> str:
        return self.text + {True: " ✓", False: " ✗", None: ""}[self.right]


def recall(
    key: str,
    measured: float | str | Ratio,
    detail: str = "",
    *,
    how: str = "Measured",
    run: Run | None = None,
) -> None:
    """Print a prediction's verdict, and store the measured value with it.

    Args:
        measured: a number or a choice, as the prediction is, or a ratio with its interval.
        detail: printed after the measured value: its unit, or evidence.
        how: the verb to print, "Computed" for a value that was not measured.
        run: the run that measured it, for a prediction of its site.

    Raises:
        ValueError: a text for a predicted number, or a number for a predicted text.
    """
    site, noise = (site_of(run), few_steps(run)) if run else (LOCAL, "")
    spread: dict[str, Any] = {}
    if isinstance(measured, Ratio):
        spread, noise = {"low": measured.low, "high": measured.high}, measured.too_few
        measured = measured.value
    if not noise:
        settle(key, measured, site)
    stored = prediction(key, site)
    predicted = stored.value if stored else None
    print(verdict(predicted, measured, **spread, detail=detail, how=how, noise=noise))


def settle(key: str, measured: float | str, site: str = LOCAL) -> None:
    """Store the measured value with a prediction, if there is one; the latest value counts."""
    key = _name(key, site)
    measured = measured if isinstance(measured, str) else float(measured)
    with changing() as store:
        if (entry := store["predictions"].get(key)) is None:
            return
        if isinstance(entry["value"], str) != isinstance(measured, str):
            raise ValueError(
                f"{key}: the prediction is {entry['value']!r} and the measured value {measured!r}: "
                f"expected two numbers or two texts"
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
    noise: str = "",
) -> Verdict:
    """Judge a prediction. A number is right within CLOSE of the measured one.

    It is too noisy to judge if it is inside an interval that is wider than that: then the interval
    has values with which it would be right, and others with which it would be wrong.

    Args:
        low, high: ends of the measured value's interval, if it has one.
        detail: unit or evidence, printed after the measured value.
        how: the verb to print, "Computed" for a value that was not measured.
        noise: why the measurement is too noisy, whatever its interval is.
    """
    is_text = isinstance(measured, str)
    shown = measured if is_text else digits(measured)
    if not is_text and low is not None:
        shown += f" ({digits(low)} to {digits(high)})"
    if detail:
        shown += f", {detail}" if is_text else f" {detail}"
    if predicted is None:
        return Verdict(f"You made no prediction. {how}: {shown}")
    if is_text:
        return Verdict(f"You: {predicted}. {how}: {shown}", predicted.lower() == measured.lower())
    far = abs(CLOSE * measured)
    if low is not None and low <= predicted <= high and max(high - measured, measured - low) > far:
        noise = noise or f"the interval is wider than ± {CLOSE:.0%}"
    if noise:
        return Verdict(f"You: {digits(predicted)}. {how}: {shown}: {NOISY}, {noise}")
    return Verdict(
        f"You: {digits(predicted)}. {how}: {shown}{_distance(predicted, measured, detail)}",
        abs(predicted - measured) <= far,
    )


def _distance(predicted: float, measured: float, unit: str) -> str:
    """Describe the distance of the measured number from the predicted one."""
    more = "more" if measured > predicted else "less"
    if unit.startswith("%"):
        return f": {digits(abs(measured - predicted))} points {more} than you predicted"
    if predicted == measured or predicted * measured <= 0:
        return ""
    factor = measured / predicted
    if not 0.5 < factor < 2:
        part = f"{digits(factor)} times" if factor > 1 else f"1/{digits(1 / factor)} of"
        return f": {part} your prediction"
    if abs(factor - 1) < 0.005:
        return ": as you predicted"
    return f": {abs(factor - 1):.0%} {more} than you predicted"


def launched_rungs() -> set[tuple[str, str]]:
    """Return the rungs that have had a run, each with its site."""
    return {(str(run.launched.get("rung", "")), site_of(run)) for run in all_runs()}


def as_stored(key: str, entry: dict[str, Any], launched: set[tuple[str, str]]) -> Prediction:
    """Create a prediction from its entry in the store."""
    values = {field: entry[field] for field in ("value", "note", "rung", "made_at", "late")}
    measured = entry.get("measured")
    return Prediction(key, **values, stands=_stands(entry, launched), measured=measured)


def _stands(entry: dict[str, Any], launched: set[tuple[str, str]]) -> bool:
    is_known = "measured" in entry  # a recorded run is launched nowhere
    return not entry["rung"] or is_known or (entry["rung"], entry.get("site", LOCAL)) in launched


def _text(value: Any, what: str) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{what} is {value!r}: expected a text that is not empty")
    return value.strip()


def _choice(key: str, value: Any, choices: Sequence[str]) -> str:
    by_lower_case = {choice.lower(): choice for choice in choices}
    text = str(value).strip().lower()
    if text not in by_lower_case:
        options = " or ".join(f'"{choice}"' for choice in choices)
        raise ValueError(f"your prediction for {key} is {value!r}: choose {options}, in quotes")
    return by_lower_case[text]


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
