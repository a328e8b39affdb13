"""Question files, their rules, the form's callbacks, and the display without a front end."""

import re
from collections import Counter
from pathlib import Path

import nbformat
import pytest
from ipywidgets import HTML, Button, RadioButtons
from nbclient import NotebookClient
from nbconvert import HTMLExporter

from course.checks.quizzes import Quiz, QuizError, load, paths
from course.checks.store import answers, path
from course.text import as_html
from course.widgets.quiz import quiz, quiz_form, static_html

WIDGET_VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def empty_store(runs_root: Path) -> Path:
    return runs_root


@pytest.mark.parametrize("name", paths())
class TestShippedFile:
    def test_has_at_most_six_questions(self, name: str) -> None:
        assert 1 <= len(quiz(name).questions) <= 6

    def test_explains_every_answer_differently(self, name: str) -> None:
        for question in quiz(name).questions:
            texts = [choice.explanation for choice in question.choices]
            assert len(set(texts)) == len(texts)
            for text in texts:
                assert 40 <= len(text) <= 400
                assert text.endswith((".", ")"))

    def test_marks_code_in_pairs(self, name: str) -> None:
        assert all(len(re.findall("`", text)) % 2 == 0 for text in _texts(quiz(name)))


def _texts(quiz: Quiz) -> list[str]:
    return [
        text
        for question in quiz.questions
        for text in (
            question.text,
            *(c.text for c in question.choices),
            *(c.explanation for c in question.choices),
        )
    ]


def test_neither_place_nor_length_gives_the_answer_away() -> None:
    questions = [question for name in paths() for question in quiz(name).questions]
    rights = [next(c for c in question.choices if c.right) for question in questions]
    places = Counter(choice.letter for choice in rights)
    assert {"a", "b", "c", "d"} <= set(places)
    assert max(places.values()) <= 0.4 * len(questions)
    longest = [max(question.choices, key=lambda c: len(c.text)).right for question in questions]
    assert sum(longest) <= 0.6 * len(questions)


GOOD = """title = "t"
[[questions]]
text = "q"
choices = [
  {text = "x", right = false, explanation = "no"},
  {text = "y", right = true, explanation = "yes"},
  {text = "z", right = false, explanation = "no"},
]
"""
BROKEN = {
    'text = "q"': ("", "broken.toml: KeyError: 'text'"),
    "right = true": ("right = false", "question 1 has 3 choices, 0 of them right: expected 3 to 5"),
    "explanation = ": ("explication = ", "unexpected keyword argument 'explication'"),
    'title = "t"': ('title = "t', "broken.toml: TOMLDecodeError"),
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "broken.toml"


@pytest.mark.parametrize(("part", "change"), BROKEN.items(), ids=[m for _, m in BROKEN.values()])
def test_a_broken_file_is_named_with_its_field(
    file: Path, part: str, change: tuple[str, str]
) -> None:
    replacement, message = change
    assert part in GOOD
    file.write_text(GOOD.replace(part, replacement, 1))
    with pytest.raises(QuizError, match=message):
        load(file)


class TestAnswerInCode:
    def test_explains_and_stores(self) -> None:
        right = _right(quiz("gpu"), 1)
        assert repr(quiz("gpu").answer(1, right.upper())).startswith(f"1{right}: right. ")
        assert answers("gpu")[1]["right"] is True
        wrong = "a" if right != "a" else "b"
        assert repr(quiz("gpu").answer(1, wrong)).startswith(f"1{wrong}: not right. ")
        assert answers("gpu")[1]["right"] is False

    @pytest.mark.parametrize(("number", "letter"), [(0, "a"), (99, "a"), ("one", "a"), (1, "z")])
    def test_names_what_there_is(self, number: object, letter: str) -> None:
        with pytest.raises(ValueError, match="choose"):
            quiz("gpu").answer(number, letter)
        assert not path().exists()

    def test_of_an_unknown_quiz_lists_them(self) -> None:
        with pytest.raises(
            ValueError,
            match="no quiz 'day9': there are start_here, scale, gpu",
        ):
            quiz("day9")


def _right(quiz: Quiz, number: int) -> str:
    return next(choice.letter for choice in quiz.question(number).choices if choice.right)


def _parts(quiz: Quiz) -> list[tuple[RadioButtons, Button, HTML]]:
    """Return the controls of each question, in the order in which Tab reaches them."""
    head, _, *controls, score = quiz_form(quiz).children
    assert [type(part) for part in controls] == [HTML, RadioButtons, Button, HTML] * len(
        quiz.questions
    )
    return [tuple(controls[i + 1 : i + 4]) for i in range(0, len(controls), 4)]


class TestForm:
    def test_explains_the_chosen_answer_and_stores_it(self) -> None:
        form_quiz = quiz("mixed_precision")
        form = quiz_form(form_quiz)
        _, above, _, choices, check, verdict, *_, score = form.children
        assert above is score  # seen without scrolling down
        assert "0 of 6" in score.value
        check.click()
        assert "Choose an answer first" in verdict.value
        assert answers("mixed_precision") == {}
        choices.value = _right(form_quiz, 1)
        assert verdict.value == ""
        check.click()
        assert "Right." in verdict.value
        (right,) = [choice for choice in form_quiz.questions[0].choices if choice.right]
        assert as_html(right.explanation) in verdict.value
        assert answers("mixed_precision")[1]["choice"] == choices.value
        assert "1 of 6" in score.value

    def test_a_wrong_answer_is_explained_and_can_be_mended(self) -> None:
        choices, check, verdict = _parts(quiz("mixed_precision"))[0]
        choices.value = "a"
        check.click()
        assert "Not right." in verdict.value
        assert answers("mixed_precision")[1]["right"] is False
        choices.value = "c"
        check.click()
        assert answers("mixed_precision")[1]["right"] is True

    def test_shows_stored_answers_again(self) -> None:
        quiz("channels_last").answer(2, "b")
        choices, _, verdict = _parts(quiz("channels_last"))[1]
        assert choices.value == "b"
        assert "Not right." in verdict.value
        others = [part for i, part in enumerate(_parts(quiz("channels_last"))) if i != 1]
        assert all(box.value is None and answer.value == "" for box, _, answer in others)

    def test_passes_over_a_stored_letter_that_went_away(self) -> None:
        quiz("channels_last").answer(2, "b")
        path().write_text(path().read_text().replace('"b"', '"e"'))
        choices, _, verdict = _parts(quiz("channels_last"))[1]
        assert choices.value is None
        assert verdict.value == ""

    def test_explains_also_where_nothing_can_be_stored(self, runs_root: Path) -> None:
        choices, check, verdict = _parts(quiz("mixed_precision"))[0]
        runs_root.write_text("a file in the way of the folder")
        choices.value = "c"
        check.click()
        assert "Right." in verdict.value
        assert "could not be stored" in verdict.value


class TestWithoutFrontEnd:
    def test_text_has_all_and_says_how_to_answer(self) -> None:
        text = repr(quiz("gpu"))
        for question in quiz("gpu").questions:
            assert question.text in text
            assert all(f"{c.letter}) {c.text}" in text for c in question.choices)
            assert not any(c.explanation in text for c in question.choices)
        assert 'quiz("gpu").answer(1, "b")' in text
        quiz("gpu").answer(1, "a")
        assert "You answered a, which is not right." in repr(quiz("gpu"))

    def test_html_holds_every_explanation_closed(self, file: Path) -> None:
        file.write_text(GOOD.replace('"q"', '"is `a < b` <i>safe</i>?"'))
        page = static_html(load(file))
        assert "is <code>a &lt; b</code> &lt;i&gt;safe&lt;/i&gt;?" in page
        assert page.count("<details>") == 3
        assert "<details><summary>b) y</summary><p><b>Right.</b> yes</p></details>" in page

    @pytest.mark.parametrize(
        "text, shown",
        [
            ("not *all* of it", "not <em>all</em> of it"),
            ("2 * 3 * 4", "2 * 3 * 4"),
            ("4*8*16", "4*8*16"),
            ("`a*b*c` is *so*", "<code>a*b*c</code> is <em>so</em>"),
        ],
    )
    def test_stress_is_slanted_and_code_stays(self, text: str, shown: str) -> None:
        assert as_html(text) == shown

    @pytest.mark.slow
    def test_executed_notebook_holds_form_page_and_text(self, tmp_path: Path) -> None:
        source = 'from course.widgets.quiz import quiz\nquiz("profiler")'
        book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
        NotebookClient(book, timeout=60, resources={"metadata": {"path": str(tmp_path)}}).execute()
        (output,) = book.cells[0].outputs
        assert set(output.data) == {WIDGET_VIEW, "text/html", "text/plain"}
        assert output.data[WIDGET_VIEW]["model_id"] in str(book.metadata.widgets)
        assert output.data["text/html"].count("<details>") == sum(
            len(question.choices) for question in quiz("profiler").questions
        )
        del output.data[WIDGET_VIEW]
        page, _ = HTMLExporter().from_notebook_node(book)
        assert page.count("<details>") == output.data["text/html"].count("<details>")
