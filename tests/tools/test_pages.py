"""The tables that README and docs show of recorded runs."""

import math
import shutil
from pathlib import Path

import pytest

from tools import pages


def test_pages_show_what_was_recorded() -> None:
    assert pages.write(check=True) == [], "run: python -m tools.pages"


def test_a_cell_that_is_nan_is_a_dash_and_text_stays() -> None:
    values = [{"name": "nan guard (nan)", "share": math.nan, "error": math.nan}]
    table = pages.markdown("| a | b | c |", "| {name} | {share:.0%} | {error:+.1%} |", values)
    assert table.splitlines()[-1] == "| nan guard (nan) | – | – |"


@pytest.mark.slow
def test_a_changed_number_is_reported_and_restored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "PROJECT", tmp_path)
    monkeypatch.setattr(pages, "PAGES", {"README.md": {"ladder": lambda: "| 2,236 |\n"}})
    monkeypatch.setattr(pages, "PICTURE", Path(shutil.copy(pages.PICTURE, tmp_path)))
    page = tmp_path / "README.md"
    marked = "<!-- ladder: python -m tools.pages writes it -->\n{}<!-- end of the ladder -->\n"
    page.write_text(marked.format("| 2,336 |\n"))
    assert pages.write(check=True) == ["the ladder in README.md"]
    assert pages.write() == ["the ladder in README.md"]
    assert page.read_text() == marked.format("| 2,236 |\n")
    page.write_text("no marking lines")
    with pytest.raises(ValueError, match="README.md needs the lines"):
        pages.write()
