"""What is said of a learner's reader of shards: without a training, from tiny shards."""

import re

import pytest
from answers import shards
from cases import for_all
from check_helpers import SOLVED, TEXT, text_of

from course.checks import dry_runs as rehearsals
from course.checks import exercises
from course.config import rung

LOOKS = {10: rehearsals.reading, 11: rehearsals.sharing}
CONFIG = rung("shards", quick=True)


@pytest.mark.parametrize("todo", LOOKS)
def test_the_solution_reads_all_once(todo: int) -> None:
    assert [*LOOKS[todo](SOLVED, CONFIG)] == []


@for_all("label", shards.WRONG)
def test_a_mistake_is_named(label: str) -> None:
    answer = shards.WRONG[label]
    (said,) = LOOKS[answer.todo](text_of(answer), CONFIG)
    assert re.search(answer.said, said), said


@for_all("label", shards.RIGHT)
def test_another_right_way_is_taken(label: str) -> None:
    answer = shards.RIGHT[label]
    assert [*LOOKS[answer.todo](text_of(answer), CONFIG)] == []


def test_open_todos_are_told() -> None:
    (said,) = rehearsals.reading(exercises.render(TEXT, 9), CONFIG)
    assert "it fails: NotImplementedError: a reader must say how images come out" in said
    (said,) = rehearsals.sharing(exercises.render(TEXT, 10), CONFIG)
    assert "two workers of a rank read the same images" in said


def test_a_reader_that_is_gone_or_fails_is_told() -> None:
    (said,) = rehearsals.reading(SOLVED.replace("class Shards", "class Others"), CONFIG)
    assert said.endswith("there is no class Shards any more")
    broken = SOLVED.replace(shards.READ, "                content = None")
    (said,) = rehearsals.sharing(broken, CONFIG)
    assert re.search(r"it fails: TypeError.*images_of\(…\)", said)
    broken = SOLVED.replace("(worker.id, worker.num_workers)", "(worker.number, 3)")
    (said,) = rehearsals.sharing(broken, CONFIG)
    assert re.search(r"it fails: AttributeError.*own_shards\(…\)", said)
    (said,) = rehearsals.reading("def main(:", CONFIG)
    assert "it fails: SyntaxError" in said
