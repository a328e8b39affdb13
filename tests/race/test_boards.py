"""Boards as a class has them: half copied entries, folders of several people, interrupted ones."""

from dataclasses import replace
from pathlib import Path

import pytest
from race_helpers import WELL, of

from course.race import again, board, page


def posted(place: Path, name: str, text: str = "SETTINGS = {}\n") -> board.Entry:
    made = replace(of(WELL, name=name), sha256=board.digest(text))
    return board.post(board.begin(place, made, text), made)


def test_what_cannot_be_read_is_passed_over(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, cut = posted(tmp_path, "whole"), posted(tmp_path, "cut")
    (tmp_path / "quick" / cut.id / board.ABOUT).write_text('{"id": "cut", "track": "qui')
    listed = tmp_path / "quick/listed"
    listed.mkdir()
    (listed / board.ABOUT).write_text("[]")
    other = replace(of(WELL, name="other"), track="mars")
    board.post(board.begin(tmp_path, other, "x = 1"), other)
    (tmp_path / "quick" / whole.id / again.VERIFIED.format("1")).write_text("{")
    assert board.entries(tmp_path, shipped=False) == [whole]
    assert whole.id in page.write(tmp_path).read_text()
    said = capsys.readouterr().err
    assert all(each in said for each in (cut.id, "listed", "no track 'mars'", "verified-1"))


def test_a_missing_script_is_no_difference(tmp_path: Path) -> None:
    first, second = posted(tmp_path, "first"), posted(tmp_path, "second", "x = 2\n")
    assert "+x = 2" in page.difference(tmp_path, first, second)
    (tmp_path / "quick" / second.id / board.SCRIPT).unlink()
    assert page.difference(tmp_path, first, second) == ""
    assert second.id in page.text(tmp_path)
