"""Boards as a class has them: half copied entries, folders of several people, interrupted ones."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from race_helpers import WELL, as_somebody, of

from course.plots.base import Picture
from course.race import again, board, entry, page
from course.runs.record import Record


def posted(place: Path, name: str, text: str = "SETTINGS = {}\n") -> board.Entry:
    made = replace(of(WELL, name=name), sha256=board.digest(text))
    return board.post(board.begin(place, made, text), made)


@pytest.fixture
def own_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages of what a test posts alone, with pictures made and not drawn: test_race draws all.

    The folder of shipped entries is one that any user may look for.
    """
    monkeypatch.setattr(board, "SHIPPED", Path("/nothing"))
    monkeypatch.setattr(Picture, "_repr_html_", lambda picture: picture.alt)


@pytest.mark.usefixtures("own_pages")
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


@pytest.mark.usefixtures("own_pages")
def test_a_missing_script_is_no_difference(tmp_path: Path) -> None:
    first, second = posted(tmp_path, "first"), posted(tmp_path, "second", "x = 2\n")
    assert "+x = 2" in page.difference(tmp_path, first, second)
    (tmp_path / "quick" / second.id / board.SCRIPT).unlink()
    assert page.difference(tmp_path, first, second) == ""
    assert second.id in page.text(tmp_path)


@pytest.fixture
def for_all(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as an instructor makes it for a class, where everybody gets at it."""
    umask = os.umask(0o022)
    place = Path(tempfile.mkdtemp(prefix="class-", dir="/tmp"))  # not in a folder of root alone
    place.chmod(0o1777)
    monkeypatch.setenv("COURSE_RUNS", str(place / "runs"))
    yield place / "board"
    shutil.rmtree(place)
    os.umask(umask)


def test_folders_of_the_board_have_its_mode(for_all: Path) -> None:
    for_all.mkdir()
    for_all.chmod(0o1777)
    posted(for_all, "alice")
    assert (for_all / "quick").stat().st_mode & 0o7777 == 0o1777
    assert [each.name for each in for_all.iterdir()] == ["quick"]  # nothing else is left


@pytest.mark.usefixtures("own_pages")
@pytest.mark.skipif(os.getuid() != 0, reason="only root may be somebody else")
def test_a_class_enters_and_shows_its_board(for_all: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An instructor's page, two learners' entries, and the page that one of them asks for."""
    # Read from a copy, because other users may not enter a clone in somebody's home.
    copy = shutil.copyfile(page.TEMPLATE, for_all.with_name(page.TEMPLATE.name))
    monkeypatch.setattr(page, "TEMPLATE", copy)
    for_all.mkdir()
    for_all.chmod(0o1777)
    page.text(for_all)  # imports what each needs
    assert as_somebody(1001, lambda: page.write(for_all)) == ""
    assert as_somebody(2001, lambda: posted(for_all, "alice")) == ""
    assert as_somebody(2002, lambda: posted(for_all, "bob")) == ""
    found = board.entries(for_all, shipped=False)
    assert {each.name for each in found} == {"alice", "bob"}
    outcome = again.compared(found[0], found[1])
    assert as_somebody(1001, lambda: again._store(outcome, found[0], for_all)) == ""
    assert outcome.said in again.outcomes(found[0], for_all)[0]
    assert as_somebody(2001, lambda: page.write(for_all)) == ""
    assert found[1].id not in (for_all / page.PAGE).read_text()  # it is the instructor's
    assert found[1].id in (for_all.parent / "runs" / page.PAGE).read_text()


def test_a_shipped_entry_is_verified_on_the_board(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shipped = next(each for each in board.entries(board.SHIPPED, shipped=False))
    monkeypatch.setattr(again, "run_all", lambda *_: shipped)  # which takes minutes
    outcome = again.verify(shipped.id, to=tmp_path)
    assert again.outcomes(shipped, tmp_path)[0].endswith(outcome.said)
    assert not [*board.SHIPPED.rglob("verified-*")]


@pytest.mark.usefixtures("own_pages")
def test_another_script_than_was_entered_is_told(tmp_path: Path) -> None:
    made = posted(tmp_path, "mine")
    said = "is not the one that was entered"
    assert board.is_as_entered(made, tmp_path) and said not in page.text(tmp_path)
    (tmp_path / "quick" / made.id / board.SCRIPT).write_text("SETTINGS = {}  # clean now\n")
    assert said in page.text(tmp_path)
    with pytest.raises(ValueError, match="is not what was entered"):
        again.verify(made.id, to=tmp_path)


@pytest.mark.usefixtures("own_pages")
def test_an_interrupted_entry_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(error: type[BaseException]) -> None:
        def run(*_: object) -> None:
            raise error

        monkeypatch.setattr(entry, "_run", run)
        with pytest.raises(error):
            entry.enter("quick", "plain", to=tmp_path)

    stop(OSError)  # a site that cannot be reached, say
    assert not board.entries(tmp_path, shipped=False)
    stop(KeyboardInterrupt)
    (found,) = board.entries(tmp_path, shipped=False)
    assert not found.counts and "interrupted by whoever entered it" in found.verdict
    assert len(found.seeds) == 3 and found.id in page.text(tmp_path)


@pytest.mark.parametrize(
    "device, cores, name",
    [
        ("cuda", 2, "A GPU, 2 of 16 cores"),
        ("cuda", 16, "A GPU"),
        ("cpu", 2, "A processor, 2 of 16 cores"),
    ],
)
def test_machines_are_named_with_their_cores(
    monkeypatch: pytest.MonkeyPatch, device: str, cores: int, name: str
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    machine = "A GPU" if device == "cuda" else f"A processor, {cores} cores"
    record = Record("ok", machine=machine, device=device, hardware={"cores": cores}, site="local")
    assert entry._machine(record) == name
