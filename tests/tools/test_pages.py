"""The tables of recorded runs in README and docs."""

from tools import pages


def test_pages_show_what_was_recorded() -> None:
    assert pages.write(check=True) == [], "run: python -m tools.pages"
