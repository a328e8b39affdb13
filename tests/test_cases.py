"""Many cases in one test: all are looked at, and each that fails is told."""

from collections.abc import Callable

import pytest
from cases import for_all


def is_even(number: int) -> None:
    assert number % 2 == 0


def test_each_that_fails_is_told_after_all_were_looked_at() -> None:
    seen = []

    @for_all("number, word", [(1, "one"), (2, "two"), (3, "three"), (4, "four")])
    def look(number: int, word: str) -> None:
        seen.append(word)
        if number == 3:
            pytest.fail("three is no number")
        is_even(number)

    with pytest.raises(AssertionError) as told:
        look()
    assert seen == ["one", "two", "three", "four"]
    said = str(told.value)
    assert "2 of 4 cases fail" in said and "3 three (line 20): Failed: three is no" in said
    assert "1 one (line 10): AssertionError: assert (1 % 2) == 0" in said and "4 four" not in said


def test_nothing_to_look_at_is_refused() -> None:
    with pytest.raises(ValueError, match="no case of .'number'.: nothing would be looked at"):
        for_all("number", [])


@for_all("double", [lambda n: n + n, lambda n: 2 * n], ids=["sum", "product"])
@for_all("number", [1, 2])
def test_cases_of_cases_and_fixtures(
    number: int, double: Callable[[int], int], request: pytest.FixtureRequest
) -> None:
    assert double(number) == 2 * number and "[" not in request.node.nodeid


@for_all("number", [2, 4])
class TestOfAClass:
    def test_each_looks_at_all(self, number: int) -> None:
        is_even(number)
