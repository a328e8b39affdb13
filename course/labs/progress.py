"""What a learner has done: predictions before the runs, checks after them, quizzes meanwhile."""

from __future__ import annotations

import html
import math
import numbers
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from course.config import LADDER
from course.labs import exercises
from course.labs.store import PARTS, UNMEASURABLE, UNTIMED, changing, now, read
from course.runs.run import all_runs

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Prediction", "Progress", "predict", "prediction", "progress", "recall"]
BLANK = "replace ... by your number (a choice goes in quotes) and run the cell again"


@dataclass(frozen=True, repr=False)
class Prediction:
    """What a learner expected, of a run or as the answer to a question.

    `late`: a run of the rung had been launched before. `stands`: it cannot be changed any more.
    """

    key: str
    value: float | str
    note: str = ""
    rung: str = ""  # "": it is about no run
    made_at: str = ""
    late: bool = False
    stands: bool = True

    @property
    def text(self) -> str:
        """The value for people: a number in at most six digits, a choice as it was given."""
        return self.value if isinstance(self.value, str) else f"{self.value:.6g}"

    def __repr__(self) -> str:
        said = f"You predicted {self.text} for {self.key}" + (f" ({self.note})" * bool(self.note))
        if self.late:
            return f"{said}, after a run of {self.rung} had been launched."
        if self.stands:
            return f"{said}. That is kept, right or wrong."
        return f"{said}. You can change it until a run of {self.rung} is launched."


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
        rung = key if key in LADDER else ""
    launched = _launched_rungs()
    with changing() as store:
        entry = store["predictions"].get(key)
        if entry is None or not _stands(entry, launched):
            store["predictions"][key] = entry = {
                "value": value, "note": str(note), "rung": rung, "made_at": now(),
                "late": rung in launched,
            }  # fmt: skip
    stored = _prediction(key, entry, launched)
    if stored.value != value:
        reason = f"a run of {stored.rung} has been launched" if stored.rung else "it was the first"
        print(f"{key}: your {stored.text} stands, since {reason}; {value!r} is not stored.")
    return stored


def prediction(key: str) -> Prediction | None:
    """The prediction stored for a key, or None."""
    entry = read()["predictions"].get(key)
    return _prediction(key, entry, _launched_rungs()) if entry else None


def recall(key: str) -> None:
    """Print what was predicted, beside the answer; it asks for nothing any more."""
    stored = prediction(key)
    print(f"{key}: you made no prediction." if stored is None else stored)


@dataclass(frozen=True, repr=False)
class Progress:
    """Four tables: what there is to do, and how far it is done.

    todos: todo, state (open, edited, solved), title. checks: check, state (open, passed, failed,
    not measurable here), correct, mechanism, effect, title. quizzes: quiz, right, answered,
    questions, title. predictions: key, value, rung, note, made_at, late, stands.
    """

    todos: pd.DataFrame
    checks: pd.DataFrame
    quizzes: pd.DataFrame
    predictions: pd.DataFrame

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """The tables as lists of rows, of JSON values only."""
        return {name: table.to_dict(orient="records") for name, table in vars(self).items()}

    def sections(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """A heading that counts, and under it a table, for each of the four."""
        filled, passed = self.todos["state"] != "open", self.checks["state"] == "passed"
        quizzes, late = self.quizzes, self.predictions["late"]
        yield f"TODOs: {filled.sum()} of {len(filled)} filled", self.todos
        so_far = (self.checks["state"] == UNMEASURABLE).sum()
        also = f", {so_far} more as far as this machine can show" if so_far else ""
        yield f"Checks: {passed.sum()} of {len(passed)} passed{also}", self.checks
        yield (f"Quizzes: {quizzes['right'].sum()} of {quizzes['questions'].sum()} answered right",
               quizzes)  # fmt: skip
        after = f", {int(late.sum())} of them after a run" if late.any() else ""
        yield f"Predictions: {len(late)}{after}", self.predictions

    def __repr__(self) -> str:
        parts = []
        for heading, table in self.sections():
            parts += [heading, *(f"  {line}" for line in _lines(table)), ""]
        return "\n".join(parts[:-1])

    def _repr_html_(self) -> str:
        parts = []
        for heading, table in self.sections():
            parts.append(f"<h4>{html.escape(heading)}</h4>")
            if len(table):
                parts.append(table.to_html(index=False, justify="left"))
        return "".join(parts)


def progress() -> Progress:
    """Which TODOs are filled, which checks passed, which questions answered, what predicted."""
    import pandas as pd

    stored, launched = read(), _launched_rungs()
    made = [vars(_prediction(key, entry, launched))
            for key, entry in stored["predictions"].items()]  # fmt: skip
    return Progress(
        pd.DataFrame(exercises.states(), columns=["todo", "state", "title"]),
        pd.DataFrame(_check_rows(stored["checks"]),
                     columns=["check", "state", *PARTS, "title"]),
        pd.DataFrame(_quiz_rows(stored["answers"]),
                     columns=["quiz", "right", "answered", "questions", "title"]),
        pd.DataFrame(made, columns=["key", "value", "rung", "note", "made_at", "late", "stands"],
                     dtype=object),
    )  # fmt: skip


def _check_rows(stored: dict[str, Any]) -> Iterator[dict[str, str]]:
    checks: dict[str, str] = import_module("course.labs.checks").CHECKS
    for name in dict.fromkeys([*checks, *stored]):
        verdicts = {part: stored.get(name, {}).get(part, "") for part in PARTS}
        yield {"check": name, "state": _state(set(verdicts.values())), **verdicts,
               "title": checks.get(name, "")}  # fmt: skip


def _state(verdicts: set[str]) -> str:
    """One word for three verdicts: what failed counts before what could not be measured."""
    verdicts = verdicts - {UNTIMED}
    if verdicts == {""}:
        return "open"
    if len(verdicts) == 1:
        return verdicts.pop()
    return "failed" if "failed" in verdicts else (verdicts - {"passed"}).pop()


def _quiz_rows(stored: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from course.labs import quizzes

    for name in quiz.names():
        each = quizzes.find(name)
        given = [stored.get(name, {}).get(str(q.number)) for q in each.questions]
        yield {
            "quiz": name, "right": sum(bool(a and a["right"]) for a in given),
            "answered": sum(a is not None for a in given), "questions": len(given),
            "title": each.title,
        }  # fmt: skip


def _lines(table: pd.DataFrame) -> list[str]:
    """A table's rows as aligned text, under their column names; no lines if it is empty."""
    if table.empty:
        return []
    rows = [list(table.columns), *([str(value) for value in row] for row in table.values.tolist())]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _launched_rungs() -> set[str]:
    return {str(run.launched.get("rung", "")) for run in all_runs()} - {""}


def _prediction(key: str, entry: dict[str, Any], launched: set[str]) -> Prediction:
    kept = {field: entry[field] for field in ("value", "note", "rung", "made_at", "late")}
    return Prediction(key, **kept, stands=_stands(entry, launched))


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
