"""Checks: no wrong answer passes, no right one fails, and the message says what to fix.

Answers are compared with the solution at once, as `check` compares a learner's: `make test` takes
the first wrong answer of each lab, `make test-long` all the others. They are in answers.toml, here
and in the tests of labs.
"""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course.checks import compare, discovery, exercises
from course.checks.compare import Comparison

pytestmark = pytest.mark.slow
CHECKS = discovery.exercises()
FILES = [path / "tests/answers.toml" for path in discovery.folders()]
FILES = [path for path in FILES if path.exists()]
FILES += [Path(__file__).with_name("answers.toml")]
ANSWERS = [tomllib.loads(path.read_text(encoding="utf-8")) for path in FILES]
WRONG, RIGHT = (sum((file.get(k, []) for file in ANSWERS), []) for k in ("wrong", "right"))
ANSWERED = {answer["exercise"] for answer in RIGHT}
RIGHT += [
    {"exercise": name, "label": "the solution", "edits": []}
    for name in CHECKS
    if name not in ANSWERED
]
RIGHT += [{"exercise": name, "label": "all are filled", "edits": []} for name in CHECKS]


def text_of(answer: dict[str, Any]) -> str:
    """Return the solution with an answer's edits; later exercises are open where these allow it."""
    solution = (exercises.SOLUTIONS / exercises.solution_of(answer["exercise"])).read_text()
    views = [None] if answer["label"] == "all are filled" else [exercises.upto(answer["exercise"])]
    for filled in [*views, None]:
        text = exercises.render(solution, filled)
        if all(text.count(old) == 1 for old, _ in answer["edits"]):
            break
    for old, new in answer["edits"]:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return f"{text}# A learner's\n"  # so that it is never the solution's own text


COUNT = len(WRONG + RIGHT)
LABS = {name: lab.name for lab in discovery.labs() for name in lab.exercises}
FIRST = list({LABS[answer["exercise"]]: n for n, answer in reversed([*enumerate(WRONG)])}.values())


@pytest.fixture(scope="module")
def comparisons(request: pytest.FixtureRequest) -> dict[int, Comparison]:
    """Compare the selected tests' answers, each in the small runs that show its mistake."""
    items = [item for item in request.session.items if item.path == Path(__file__)]
    numbers = [item.callspec.params["number"] for item in items if hasattr(item, "callspec")]
    requests = []
    for answer in [(WRONG + RIGHT)[number] for number in numbers]:
        check = CHECKS[answer["exercise"]]
        runs = answer.get("configs", range(len(check.configs)))
        few = replace(check, configs=tuple(check.configs[number] for number in runs))
        if runs and answer in WRONG:
            few = replace(few, calls=())
        requests.append((few, text_of(answer)))
    return dict(zip(numbers, compare.compare(requests)))


def marked(number: int) -> Any:
    """Return the parameter of an answer's test."""
    answer = (WRONG + RIGHT)[number]
    marks = [] if number in FIRST else [pytest.mark.long]
    return pytest.param(number, id=f"{answer['exercise']} {answer['label']}", marks=marks)


@pytest.mark.parametrize("number", [marked(number) for number in range(len(WRONG))])
def test_the_message_shows_what_to_fix(number: int, comparisons: dict[int, Comparison]) -> None:
    difference = comparisons[number].difference
    assert re.search(WRONG[number]["hint"], difference), difference
    assert not re.search(r"Connection reset|Traceback|gloo/transport|/tmp/", difference)


@pytest.mark.parametrize("number", [marked(number) for number in range(len(WRONG), COUNT)])
def test_a_right_answer_passes(number: int, comparisons: dict[int, Comparison]) -> None:
    comparison = comparisons[number]
    assert comparison.difference == comparison.error == ""


def test_exercises_have_wrong_answers() -> None:
    missing = {*CHECKS} - {answer["exercise"] for answer in WRONG}
    assert not missing, "add a [[wrong]] answer to tests/answers.toml in the folder of its lab"
