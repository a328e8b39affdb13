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

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from course.checks import discovery
from course.checks.shared_progress import save_answer
from course.checks.store import answers

LETTERS = "abcde"
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
    """Return the quiz of a lab, "gpu" for instance.

    Raises:
        ValueError: no such quiz, or (QuizError) a file that breaks a rule.
    """
    if name not in paths():
        raise ValueError(f"no quiz {name!r}: there are {', '.join(paths())}")
    return load(paths()[name])


def paths() -> dict[str, Path]:
    """Return the files of all quizzes by their labs' names."""
    files = {lab.name: lab.folder / "quiz.toml" for lab in discovery.labs()}
    return {name: path for name, path in files.items() if path.is_file()}


def load(path: Path) -> Quiz:
    """Read and validate a question file.

    Raises:
        QuizError: it is invalid; the message names the file and the field or question.
    """
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
        questions = [_question(*entry) for entry in enumerate(values["questions"], 1)]
        return Quiz(path.parent.name, values["title"], tuple(questions))
    except (ValueError, KeyError, TypeError) as error:
        raise QuizError(f"{path}: {type(error).__name__}: {error}") from None


def _question(number: int, values: dict[str, Any]) -> Question:
    choices = tuple(Choice(letter, **choice) for letter, choice in zip(LETTERS, values["choices"]))
    rights = sum(choice.right for choice in choices)
    if len(values["choices"]) not in range(LEAST, MOST + 1) or rights != 1:
        raise ValueError(
            f"question {number} has {len(values['choices'])} choices, {rights} of them right: "
            f"expected {LEAST} to {MOST}, and one of them right"
        )
    return Question(number, values["text"], choices)
