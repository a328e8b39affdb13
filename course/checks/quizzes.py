"""Quizzes: questions from labs/*/quiz.toml, with an explanation for each answer.

    title = "…"

    [[questions]]
    text = "…"

    [[questions.choices]]   # three to five; exactly one has right = true
    text = "…"
    right = true
    explanation = "…"

Text between `backticks` becomes code, text between *asterisks* italic.
"""

from __future__ import annotations

import html
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.checks import discovery
from course.checks.store import answers, save_answer

LETTERS = "abcde"
ITALIC = r"(?<![\w*])\*(\w[^*]*)\*(?![\w*])"  # not the asterisks of a product
MOST, LEAST = len(LETTERS), 3  # choices per question


class QuizError(ValueError):
    """An invalid question file; the message names file, question and field."""


@dataclass(frozen=True)
class Choice:
    """A possible answer, and why it is right or wrong."""

    letter: str
    text: str
    right: bool
    explanation: str


@dataclass(frozen=True)
class Question:
    """A question, numbered from 1, with exactly one right choice."""

    number: int
    text: str
    choices: tuple[Choice, ...]

    def choice(self, letter: str) -> Choice:
        """Return the choice with a letter. Raises ValueError, listing the letters."""
        for choice in self.choices:
            if choice.letter == str(letter).strip().lower():
                return choice
        letters = ", ".join(choice.letter for choice in self.choices)
        raise ValueError(f"question {self.number} has no choice {letter!r}: choose {letters}")


@dataclass(frozen=True, repr=False)
class Answer:
    """A learner's answer, displayed as a verdict and the explanation."""

    question: Question
    choice: Choice

    def __repr__(self) -> str:
        verdict = "right" if self.choice.right else "not right"
        return f"{self.question.number}{self.choice.letter}: {verdict}. {self.choice.explanation}"


@dataclass(frozen=True, repr=False)
class Quiz:
    """A quiz as text; `course.widgets.quiz` shows it as a form. `answer` works without a form."""

    name: str
    title: str
    questions: tuple[Question, ...]

    def question(self, number: int) -> Question:
        """Return a question by its number. Raises ValueError, naming the numbers."""
        if number not in range(1, len(self.questions) + 1):
            last = len(self.questions)
            raise ValueError(f"{self.name} has no question {number!r}: choose 1 to {last}")
        return self.questions[number - 1]

    def answer(self, number: int, letter: str) -> Answer:
        """Store an answer, and return it with the explanation.

        Raises:
            ValueError: no such question or choice.
            OSError: the answer cannot be stored.
        """
        question = self.question(number)
        choice = question.choice(letter)
        save_answer(self.name, question.number, choice.letter, choice.right)
        return Answer(question, choice)

    def answered(self) -> dict[int, Choice]:
        """Return the latest stored choices by question number."""
        choices = {q.number: {c.letter: c for c in q.choices} for q in self.questions}
        stored = {number: str(entry["choice"]) for number, entry in answers(self.name).items()}
        return {
            number: choices[number][letter]
            for number, letter in stored.items()
            if letter in choices.get(number, {})
        }

    def __repr__(self) -> str:
        answered = self.answered()
        lines = [f"Quiz: {self.title}"]
        for question in self.questions:
            lines += ["", f"{question.number}. {question.text}"]
            lines += [f"   {choice.letter}) {choice.text}" for choice in question.choices]
            if choice := answered.get(question.number):
                verdict = "right" if choice.right else "not right"
                lines.append(f"   You answered {choice.letter}, which is {verdict}.")
        how = f'quiz("{self.name}").answer(1, "b")'
        return "\n".join([*lines, "", f"For example, answer question 1 with b: {how}"])


def find(name: str) -> Quiz:
    """Return the quiz of a lab, "day1_1_gpu" for instance.

    Raises:
        ValueError: no such quiz, or (QuizError) a file that breaks a rule.
    """
    if name not in names():
        raise ValueError(f"no quiz {name!r}: there are {', '.join(names())}")
    return load(discovery.LABS / name / "quiz.toml")


def names() -> list[str]:
    """Return the names of all quizzes, which are their labs' names."""
    return [path.name for path in discovery.folders() if (path / "quiz.toml").is_file()]


def load(path: Path) -> Quiz:
    """Read and validate a question file.

    Raises:
        QuizError: it is invalid; the message names file, question and field.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # not TOML, or not UTF-8
        raise QuizError(f"{path.name} is not TOML: {error}") from None
    _check_fields(values, {"title": str, "questions": list}, path.name)
    entries = enumerate(values["questions"], 1)
    questions = tuple(_question(number, entry, path.name) for number, entry in entries)
    return Quiz(path.parent.name, values["title"].strip(), questions)


def as_html(text: str) -> str:
    """Return text as HTML, with code in `backticks` and *italic* text."""
    # Code first: its content stays as it is.
    parts = re.split(r"`([^`]+)`", html.escape(text))
    parts[1::2] = [f"<code>{code}</code>" for code in parts[1::2]]
    parts[::2] = [re.sub(ITALIC, r"<em>\1</em>", part) for part in parts[::2]]
    return "".join(parts)


def _question(number: int, values: Any, file: str) -> Question:
    where = f"{file}, question {number}"
    _check_fields(values, {"text": str, "choices": list}, where)
    if not LEAST <= len(values["choices"]) <= MOST:
        count = len(values["choices"])
        raise QuizError(f"{where}: choices: {count}, expected {LEAST} to {MOST}")
    entries = zip(LETTERS, values["choices"])
    choices = tuple(_choice(letter, entry, where) for letter, entry in entries)
    if len({choice.text for choice in choices}) < len(choices):
        raise QuizError(f"{where}: choices: two have the same text")
    if (rights := sum(choice.right for choice in choices)) != 1:
        raise QuizError(f"{where}: right: true for {rights} choices, expected exactly one")
    return Question(number, values["text"].strip(), choices)


def _choice(letter: str, values: Any, where: str) -> Choice:
    fields = {"text": str, "right": bool, "explanation": str}
    _check_fields(values, fields, f"{where}, choice {letter}")
    return Choice(letter, values["text"].strip(), values["right"], values["explanation"].strip())


def _check_fields(values: Any, wanted: dict[str, type], where: str) -> None:
    if not isinstance(values, dict):
        raise QuizError(f"{where}: expected a table with {', '.join(wanted)}, not {values!r}")
    for field in values.keys() - wanted.keys():
        raise QuizError(f"{where}: unknown field {field}: choose from {', '.join(wanted)}")
    for field, kind in wanted.items():
        if field not in values:
            raise QuizError(f"{where}: {field} is missing")
        value = values[field]
        if not isinstance(value, kind):
            raise QuizError(f"{where}: {field} is {value!r}, expected a {kind.__name__}")
        if kind is not bool and not (value.strip() if kind is str else value):
            raise QuizError(f"{where}: {field} is empty")
