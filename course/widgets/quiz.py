"""Show a quiz as a form of ipywidgets.

It uses only radio buttons and buttons, so that the keyboard is enough: Tab goes to the next
control, and Space presses it. JupyterLab uses the arrow keys to go to the next cell.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ipywidgets import HTML, Button, Layout, RadioButtons, VBox, Widget

from course.charts import widget_view
from course.checks.quizzes import Choice, Question, Quiz, find
from course.text import as_html

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
        """Return the form, HTML for a page without a kernel, and text for a terminal."""
        form = widget_view(quiz_form(self))
        return {**form, "text/html": static_html(self), "text/plain": repr(self)}


def quiz(name: str) -> ShownQuiz:
    """Return the quiz of a notebook, such as "gpu"."""
    return ShownQuiz(**vars(find(name)))


def static_html(quiz: Quiz) -> str:
    """Return a quiz for a page without a kernel: each choice unfolds to its explanation."""
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
    """Create a form: for each question its text, choices, a button and a verdict.

    Stored answers are already chosen and explained.
    """
    answers, score = quiz.answered(), HTML()

    def show_score() -> None:
        right = sum(choice.right for choice in answers.values())
        score.value = _status(f"{right} of {len(quiz.questions)} answered correctly.")

    def answer(question: Question, letter: str) -> None:
        answers[question.number] = question.choice(letter)
        show_score()
        quiz.answer(question.number, letter)

    show_score()
    parts = [
        part
        for question in quiz.questions
        for part in _question_parts(question, answers.get(question.number), answer)
    ]
    head = f"{STYLE}<b>Quiz: {as_html(quiz.title)}</b><br><small>{KEYS}</small>"
    form = VBox([HTML(head), score, *parts, score])  # above and below
    form.add_class("course-quiz")
    return form


def _question_parts(
    question: Question, stored: Choice | None, answer: Callable[[Question, str], None]
) -> list[Widget]:
    number, text = question.number, as_html(question.text)
    options = [(f"{c.letter}) {c.text.replace('`', '')}", c.letter) for c in question.choices]
    letter = stored.letter if stored else None
    choices = RadioButtons(options=options, value=letter, layout=Layout(width="auto"))
    layout = Layout(width="max-content")
    check = Button(description=f"Check answer {number}", layout=layout)
    verdict = HTML(_explanation(stored) if stored else "")

    def show_verdict(_: Button) -> None:
        if choices.value is None:
            verdict.value = _status("Choose an answer first.")
            return
        verdict.value = _explanation(question.choice(choices.value))
        try:
            answer(question, choices.value)
        except OSError as error:  # the learner still sees the verdict
            verdict.value += _status(f"The answer could not be stored: {as_html(str(error))}")

    def clear_verdict(_: dict) -> None:
        verdict.value = ""

    check.on_click(show_verdict)
    choices.observe(clear_verdict, names="value")
    head = HTML(f'<p style="margin-top:14px"><b>{number}.</b> {text}</p>')
    return [head, choices, check, verdict]


def _explanation(choice: Choice) -> str:
    # The verdict has a sign and a word, not only a colour.
    verdict = "✓ Right." if choice.right else "✗ Not right."
    colour = "#009E73" if choice.right else "#D55E00"
    return _status(
        f'<div style="border-left:4px solid {colour};padding-left:8px;margin:6px 0">'
        f"<b>{choice.letter}) {verdict}</b> {as_html(choice.explanation)}</div>"
    )


def _status(content: str) -> str:
    # A screen reader announces changes.
    return f'<div role="status" aria-live="polite">{content}</div>'
