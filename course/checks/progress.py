"""A learner's progress: TODOs, checks, quizzes and predictions."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course.checks import discovery, exercises
from course.checks.predictions import as_stored, launched_rungs
from course.checks.store import PARTS, UNMEASURABLE, UNTIMED, read
from course.text import digits

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Progress:
    """Four tables of what a learner has done and can still do.

    todos: todo, state (open, edited, solved), title. checks: check, state (open, passed, failed,
    not measurable here), correct, mechanism, effect, title. quizzes: quiz, right, answered,
    questions, title. predictions: key, value, measured, rung, note, made_at, late,
    stands.
    """

    todos: pd.DataFrame
    checks: pd.DataFrame
    quizzes: pd.DataFrame
    predictions: pd.DataFrame

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the tables as lists of rows, of JSON values only."""
        return {name: table.to_dict(orient="records") for name, table in vars(self).items()}

    def sections(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield a heading with counts and the table, for each of the four."""
        filled, passed = self.todos["state"] != "open", self.checks["state"] == "passed"
        quizzes, late = self.quizzes, self.predictions["late"]
        yield f"TODOs: {filled.sum()} of {len(filled)} filled", self.todos
        partly = (self.checks["state"] == UNMEASURABLE).sum()
        more = f", {partly} more as far as this machine can measure" if partly else ""
        yield f"Checks: {passed.sum()} of {len(passed)} passed{more}", self.checks
        yield (
            f"Quizzes: {quizzes['right'].sum()} of {quizzes['questions'].sum()} answered correctly",
            quizzes,
        )
        after = f", {int(late.sum())} of them after a run" if late.any() else ""
        yield f"Predictions: {len(late)}{after}", self.predictions

    def __repr__(self) -> str:
        parts = []
        for heading, table in self.sections():
            parts += [heading, *(f"  {line}" for line in _lines(table)), ""]
        return "\n".join(parts[:-1])

    def _repr_html_(self) -> str:
        from course.charts.tables import as_html

        parts = []
        for heading, table in self.sections():
            parts.append(f"<h4>{html.escape(heading)}</h4>")
            if len(table):
                parts.append(as_html(table, index=False))
        return "".join(parts)


def progress() -> Progress:
    """Show TODOs, checks, quizzes and predictions, with what is done."""
    import pandas as pd

    stored, launched = read(), launched_rungs()
    entries = stored["predictions"].items()
    predictions = [vars(as_stored(key, entry, launched)) for key, entry in entries]
    return Progress(
        pd.DataFrame(exercises.all_states(), columns=["todo", "state", "title"]),
        pd.DataFrame(_check_rows(stored["checks"]), columns=["check", "state", *PARTS, "title"]),
        pd.DataFrame(
            _quiz_rows(stored["answers"]),
            columns=["quiz", "right", "answered", "questions", "title"],
        ),
        pd.DataFrame(
            predictions,
            columns=["key", "value", "measured", "rung", "note", "made_at", "late", "stands"],
            dtype=object,
        ),
    )


def _check_rows(stored: dict[str, Any]) -> Iterator[dict[str, str]]:
    checks = discovery.checks() | discovery.functions()
    titles = {name: check.title for name, check in checks.items()} | discovery.file_checks()
    for name in dict.fromkeys([*titles, *stored]):
        verdicts = {part: stored.get(name, {}).get(part, "") for part in PARTS}
        yield {
            "check": name,
            "state": _state(set(verdicts.values())),
            **verdicts,
            "title": titles.get(name, ""),
        }


def _state(verdicts: set[str]) -> str:
    """Sum up the verdicts of a check in one word; a failure counts first."""
    verdicts = verdicts - {UNTIMED}
    if verdicts == {""}:
        return "open"
    if len(verdicts) == 1:
        return verdicts.pop()
    return "failed" if "failed" in verdicts else (verdicts - {"passed"}).pop()


def _quiz_rows(stored: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from course.checks import quizzes

    for quiz in map(quizzes.find, quizzes.names()):
        answers = [stored.get(quiz.name, {}).get(str(q.number)) for q in quiz.questions]
        yield {
            "quiz": quiz.name,
            "right": sum(bool(answer and answer["right"]) for answer in answers),
            "answered": sum(answer is not None for answer in answers),
            "questions": len(answers),
            "title": quiz.title,
        }


def _lines(table: pd.DataFrame) -> list[str]:
    """Return a table as lines of aligned text, with a heading; no lines if it is empty."""
    if table.empty:
        return []
    rows = [
        list(table.columns),
        *([_cell(value) for value in row] for row in table.values.tolist()),
    ]
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return digits(value)
    return "–" if value is None else str(value)
