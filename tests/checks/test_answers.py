"""Checks: no wrong answer passes, no right one fails, and the message says what to fix.

All scripts of a check are compared with the solution at once, as `check` compares a learner's.
"""

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from course.checks import compare, discovery, exercises
from course.checks.compare import Comparison

pytestmark = pytest.mark.slow
CHECKS = discovery.checks()
BY_TODO = {wanted.todo: name for name, wanted in CHECKS.items()}
ANSWERS = tomllib.loads(Path(__file__).with_name("answers.toml").read_text())
WRONG, RIGHT = ANSWERS["wrong"], ANSWERS["right"]


def rendered(todo: int, solved: int | None = None) -> str:
    """The script that has a TODO, with so many filled; None: with all of them."""
    text = (exercises.SOLUTIONS / exercises.solution_of(todo)).read_text()
    return exercises.render(text, exercises.count(text) if solved is None else solved)


def text_of(answer: dict[str, Any]) -> str:
    """The solution as somebody else wrote it."""
    text = rendered(answer["todo"])
    for old, new in answer["edits"]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@cache
def comparisons() -> dict[tuple[int, str], Comparison]:
    """All scripts, by their TODO and label."""
    requests = {(x["todo"], x["label"]): text_of(x) for x in [*WRONG, *RIGHT]}
    for todo in BY_TODO:
        requests[todo, "solution"] = rendered(todo)
        requests[todo, "later TODOs open"] = rendered(todo, todo)
    found = compare.compare([(CHECKS[BY_TODO[todo]], text) for (todo, _), text in requests.items()])
    return dict(zip(requests, found))


def label_of(answer: dict[str, Any]) -> str:
    return answer["label"].replace(" ", "-")


@pytest.mark.parametrize("todo", BY_TODO)
@pytest.mark.parametrize("label", ["solution", "later TODOs open"])
def test_the_solution_passes(todo: int, label: str) -> None:
    found = comparisons()[todo, label]
    assert found.difference == found.error == ""


@pytest.mark.parametrize("answer", WRONG, ids=label_of)
def test_a_wrong_answer_is_told_what_to_fix(answer: dict[str, Any]) -> None:
    found = comparisons()[answer["todo"], answer["label"]].difference
    assert re.search(answer["hint"], found), found
    assert not re.search(r"Connection reset|Traceback|gloo/transport", found)


@pytest.mark.parametrize("answer", RIGHT, ids=label_of)
def test_a_right_answer_passes(answer: dict[str, Any]) -> None:
    assert comparisons()[answer["todo"], answer["label"]].difference == ""


def test_every_check_has_a_wrong_answer() -> None:
    assert {answer["todo"] for answer in WRONG} == {*BY_TODO}
