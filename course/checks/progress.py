"""A learner's progress: TODOs, checks, quizzes and predictions."""

from __future__ import annotations

import html
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from course.checks import discovery, exercises
from course.checks.predictions import as_stored, launched_rungs
from course.checks.store import NOISY, PARTS, UNMEASURABLE, read, state_of
from course.runs import clone
from course.text import digits

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, repr=False)
class Progress:
    """Tables of what a learner has done and can still do.

    Displayed, it is a summary: days, and the labs that were begun, with the next one. If
    `everything`, it is all of the other four tables.

    days: day, todos, checks, quiz (each as "2 of 6"). labs: lab, title, todos, checks, quiz, left
    (names of checks that did not pass), begun. todos: todo, state (open, edited, given by
    `course exercises --upto`, solved), title. checks: check, state (open, passed, failed, too noisy
    to judge, not measurable here), correct, mechanism, effect, title. quizzes: quiz, right,
    answered, questions, title. predictions: key, value, measured, rung, note, made_at, late,
    stands.
    """

    todos: pd.DataFrame
    checks: pd.DataFrame
    quizzes: pd.DataFrame
    predictions: pd.DataFrame
    days: pd.DataFrame
    labs: pd.DataFrame
    everything: bool = False
    update: str = ""  # that one is waiting

    def to_dict(self) -> dict[str, list[dict[str, Any]]]:
        """Return the last four tables as lists of rows, of JSON values only."""
        names = ("todos", "checks", "quizzes", "predictions")
        return {name: getattr(self, name).to_dict(orient="records") for name in names}

    def sections(self) -> Iterator[tuple[str, pd.DataFrame]]:
        """Yield headings with counts, each with a table, which may be empty."""
        import pandas as pd

        if not self.everything:
            yield "Days", self.days
            yield "Labs that you began, and the next", self._begun_labs()
        for heading, table in self._tables():
            yield heading, table if self.everything else pd.DataFrame()
        if not self.everything:
            yield "All of them: course progress --all, or progress(everything=True)", pd.DataFrame()

    def _begun_labs(self) -> pd.DataFrame:
        """Return the labs that were begun, and the first one after the last of them."""
        begun = self.labs["begun"]
        first = begun[begun].index.max() + 1 if begun.any() else 0
        return self.labs[begun | (self.labs.index == first)].drop(columns="begun")

    def _tables(self) -> Iterator[tuple[str, pd.DataFrame]]:
        states, passed = self.todos["state"], self.checks["state"] == "passed"
        quizzes, late = self.quizzes, self.predictions["late"]
        filled, given = states.isin(FILLED).sum(), (states == "given").sum()
        more = f", {given} more by course exercises --upto" if given else ""
        yield f"TODOs: {filled} of {len(states)} filled{more}", self.todos
        partly = self.checks["state"].isin([UNMEASURABLE, NOISY]).sum()
        more = f", {partly} more as far as this machine can measure" if partly else ""
        yield f"Checks: {passed.sum()} of {len(passed)} passed{more}", self.checks
        yield (
            f"Quizzes: {quizzes['right'].sum()} of {quizzes['questions'].sum()} answered correctly",
            quizzes,
        )
        after = f", {int(late.sum())} of them after a run" if late.any() else ""
        yield f"Predictions: {len(late)}{after}", self.predictions

    def __repr__(self) -> str:
        parts = [self.update, ""]
        for heading, table in self.sections():
            lines = [f"  {line}" for line in _lines(table)]
            parts += [heading, *lines, *[""] * bool(lines)]
        return "\n".join(parts).strip()

    def _repr_html_(self) -> str:
        from course.charts.tables import as_html

        parts = [f"<p><b>{html.escape(self.update)}</b></p>"] * bool(self.update)
        for heading, table in self.sections():
            parts.append(f"<h4>{html.escape(heading)}</h4>")
            if len(table):
                parts.append(as_html(table, index=False))
        return "".join(parts)


def progress(*, everything: bool = False) -> Progress:
    """Show what is done: a summary, or all TODOs, checks, quizzes and predictions."""
    import pandas as pd

    update = clone.look_for_update()
    stored, launched = read(), launched_rungs()
    entries = stored["predictions"].items()
    predictions = [vars(as_stored(key, entry, launched)) for key, entry in entries]
    todos = pd.DataFrame(exercises.all_states(), columns=["todo", "state", "title"])
    checks = pd.DataFrame(
        _check_rows(stored["checks"]), columns=["check", "state", *PARTS, "title"]
    )
    quizzes = pd.DataFrame(
        _quiz_rows(stored["answers"]), columns=["quiz", "right", "answered", "questions", "title"]
    )
    made = pd.DataFrame(
        predictions,
        columns=["key", "value", "measured", "rung", "note", "made_at", "late", "stands"],
        dtype=object,
    )
    counts = pd.DataFrame(_lab_rows(todos, checks, quizzes))
    days = counts.groupby("day", sort=False)[[*COUNTED]].sum().reset_index()
    labs = _in_words(counts)[["lab", "title", *WORDS, "left", "begun"]]
    days = _in_words(days)[["day", *WORDS]]
    return Progress(todos, checks, quizzes, made, days, labs, everything, update())


FILLED = ("edited", "solved")  # by the learner
WORDS = ("todos", "checks", "quiz")
COUNTED = ("todos_given", *(f"{word}_{part}" for word in WORDS for part in ("done", "all")))


def _in_words(counts: pd.DataFrame) -> pd.DataFrame:
    """Add the COUNTED columns as text, "2 of 6"; for TODOs, also how many were given."""
    for word in WORDS:
        pairs = zip(counts[f"{word}_done"], counts[f"{word}_all"])
        counts[word] = [f"{done} of {total}" if total else "–" for done, total in pairs]
    given = [f", {count} given" if count else "" for count in counts["todos_given"]]
    counts["todos"] += given
    return counts


def _lab_rows(
    todos: pd.DataFrame, checks: pd.DataFrame, quizzes: pd.DataFrame
) -> Iterator[dict[str, Any]]:
    """Yield for each lab what is done and what there is."""
    states = dict(zip(todos["todo"], todos["state"]))
    outcomes = dict(zip(checks["check"], checks["state"]))
    answers = quizzes.set_index("quiz")
    for lab in discovery.labs():
        todos = [states.get(todo, "open") for todo in lab.exercises]
        filled = [state in FILLED for state in todos]
        results = {name: outcomes.get(name, "open") for name in lab.all_checks}
        right, answered, asked = 0, 0, 0
        if lab.name in answers.index:
            right, answered, asked = answers.loc[lab.name, ["right", "answered", "questions"]]
        left = {name: state for name, state in results.items() if state != "passed"}
        begun = {*todos} - {"open"} or {*results.values()} - {"open"} or answered
        yield {
            "day": f"Day {lab.number.partition('.')[0]}" if lab.number else "Electives",
            "lab": lab.number or "–",
            "title": lab.title,
            "todos_done": sum(filled),
            "todos_all": len(filled),
            "todos_given": todos.count("given"),
            "checks_done": len(results) - len(left),
            "checks_all": len(results),
            "quiz_done": right,
            "quiz_all": asked,
            "left": ", ".join(
                name + f" ({state})" * (state != "open") for name, state in left.items()
            ),
            "begun": bool(begun),
        }


def _check_rows(stored: dict[str, Any]) -> Iterator[dict[str, str]]:
    checks = discovery.exercises() | discovery.functions()
    titles = {name: check.title for name, check in checks.items()} | discovery.file_checks()
    for name in dict.fromkeys([*titles, *stored]):
        outcome = stored.get(name, {})
        yield {
            "check": name,
            "state": state_of(outcome),
            **{part: outcome.get(part, "") for part in PARTS},
            "title": titles.get(name, ""),
        }


def _quiz_rows(stored: dict[str, Any]) -> Iterator[dict[str, Any]]:
    from course.checks import quizzes

    for quiz in map(quizzes.load, quizzes.paths().values()):
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
