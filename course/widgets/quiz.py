"""The form of a quiz, drawn with ipywidgets.

Only native controls, radio buttons and buttons, so that the keyboard does all: Tab goes from
one to the next, Space presses it. Arrow keys are JupyterLab's own: they go to the next cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ipywidgets
from ipywidgets import HTML, Button, Layout, RadioButtons, VBox

from course.checks.quizzes import Choice, Question, Quiz, as_html, find

# ipywidgets gives every choice one line of fixed height; ours may need two.
STYLE = """<style>
.course-quiz .widget-radio, .course-quiz .widget-radio-box { width: auto; }
.course-quiz .widget-radio-box label {
  display: flex; flex-direction: row-reverse; justify-content: flex-end; align-items: flex-start;
  gap: 8px; height: auto; line-height: 1.4; white-space: normal; margin-bottom: 4px; }
.course-quiz .widget-radio-box input { flex: none; margin: 0 0 0 2px; }
.course-quiz code { overflow-wrap: anywhere; }
.course-quiz .widget-html-content { line-height: 1.45; white-space: normal; }
.course-quiz :focus-visible { outline: 2px solid #0072B2; outline-offset: 2px; }
</style>"""
KEYS = "By keyboard: Tab goes from choice to choice, Space chooses."


@dataclass(frozen=True, repr=False)
class ShownQuiz(Quiz):
    """A quiz: a form in a notebook, text elsewhere; `answer` needs no form."""

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """The form; for a page without a kernel, HTML; for a terminal, text."""
        form = quiz_form(self)._repr_mimebundle_() or {}
        return {**form, "text/html": static_html(self), "text/plain": repr(self)}


def quiz(name: str) -> ShownQuiz:
    """The quiz of a notebook, "day1_1" for instance.

    Raises:
        ValueError: no such quiz, or (QuizError) a file that breaks a rule.
    """
    return ShownQuiz(**vars(find(name)))


def static_html(quiz: Quiz) -> str:
    """A quiz for a page without a kernel: each choice opens to its explanation."""
    parts = [
        f"<p><b>Quiz: {as_html(quiz.title)}</b>. Open a choice to see whether it is right.</p>"
    ]
    for question in quiz.questions:
        parts.append(f"<p>{question.number}. {as_html(question.text)}</p>")
        for choice in question.choices:
            verdict = "Right." if choice.right else "Not right."
            parts.append(
                f"<details><summary>{choice.letter}) {as_html(choice.text)}</summary>"
                f"<p><b>{verdict}</b> {as_html(choice.explanation)}</p></details>"
            )
    return '<div style="overflow-wrap:anywhere">' + "".join(parts) + "</div>"


def quiz_form(quiz: Quiz) -> VBox:
    """The form of a quiz: for each question its text, its choices, a button and a verdict.

    Answers that were stored before are chosen and explained already.
    """
    given, score = quiz.answered(), HTML()

    def count() -> None:
        right = sum(choice.right for choice in given.values())
        score.value = _status(f"{right} of {len(quiz.questions)} answered correctly.")

    def answer(question: Question, letter: str) -> Choice:
        choice = given[question.number] = question.choice(letter)
        count()
        quiz.answer(question.number, letter)
        return choice

    count()
    parts = [
        part
        for question in quiz.questions
        for part in _question_parts(question, given.get(question.number), answer)
    ]
    head = f"{STYLE}<b>Quiz: {as_html(quiz.title)}</b><br><small>{KEYS}</small>"
    form = VBox([HTML(head), score, *parts, score])  # shown above and below
    form.add_class("course-quiz")
    return form


def _question_parts(
    question: Question, given: Choice | None, answer: Callable[[Question, str], Choice]
) -> list[ipywidgets.Widget]:
    text = HTML(
        f'<p style="margin-top:14px"><b>{question.number}.</b> {as_html(question.text)}</p>'
    )
    options = [
        (f"{choice.letter}) {choice.text.replace('`', '')}", choice.letter)
        for choice in question.choices
    ]
    choices = RadioButtons(
        options=options, value=given.letter if given else None, layout=Layout(width="auto")
    )
    check = Button(
        description=f"Check answer {question.number}", layout=Layout(width="max-content")
    )
    verdict = HTML(_explained(given) if given else "")

    def clicked(_: Button) -> None:
        if choices.value is None:
            verdict.value = _status("Choose an answer first.")
            return
        try:
            verdict.value = _explained(answer(question, choices.value))
        except OSError as error:  # the learner shall still learn whether it is right
            verdict.value = _explained(question.choice(choices.value))
            verdict.value += _status(f"The answer could not be stored: {as_html(str(error))}")

    def changed(_: dict) -> None:
        verdict.value = ""

    check.on_click(clicked)
    choices.observe(changed, names="value")
    return [text, choices, check, verdict]


def _explained(choice: Choice) -> str:
    # Told by a sign and a word, not by colour alone.
    verdict = "✓ Right." if choice.right else "✗ Not right."
    colour = "#009E73" if choice.right else "#D55E00"
    explanation = as_html(choice.explanation)
    return _status(
        f'<div style="border-left:4px solid {colour};padding-left:8px;margin:6px 0">'
        f"<b>{choice.letter}) {verdict}</b> {explanation}</div>"
    )


def _status(content: str) -> str:
    # A screen reader announces what appears in it.
    return f'<div role="status" aria-live="polite">{content}</div>'
