"""Tests of this lab's own code: python -m pytest labs/NAME"""

from labs._template import double


def test_double() -> None:
    assert double(2) == 4
