"""Boards as a class has them: odd entries, folders of several people, interrupted entries."""

import ast
import html
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from race_helpers import WELL, as_somebody, of
from typer.testing import CliRunner

from course.__main__ import app
from course.charts.base import Picture
from course.runs.record import Record
from race import again, board, entry, page, pictures, shared_files


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
def test_a_missing_script_is_no_difference(tmp_path: Path) -> None:
    first, second = posted(tmp_path, "first"), posted(tmp_path, "second", "x = 2\n")
    assert "+x = 2" in page.difference(tmp_path, first, second)
    (tmp_path / "quick" / second.id / board.SCRIPT).unlink()
    assert page.difference(tmp_path, first, second) == ""
    assert second.id in page.text(tmp_path)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as an instructor makes it for a class: everybody can write there."""
    umask = os.umask(0o022)
    place = Path(tempfile.mkdtemp(prefix="class-", dir="/tmp"))  # not in a folder of root alone
    place.chmod(0o1777)
    (place / "board").mkdir()
    (place / "board").chmod(0o1777)
    monkeypatch.setenv("COURSE_RUNS", str(place / "runs"))
    # Read from a copy, because other users may not enter a clone in somebody's home.
    copy = shutil.copyfile(page.TEMPLATE, place / page.TEMPLATE.name)
    monkeypatch.setattr(page, "TEMPLATE", copy)
    yield place / "board"
    shutil.rmtree(place)
    os.umask(umask)


INSTRUCTOR, ALICE, MALLORY = 41001, 41002, 41003
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root may be somebody else")


def act(uid: int, do: Callable[[], object]) -> None:
    """Do something as another user; without root as this one."""
    if os.getuid() == 0:
        assert as_somebody(uid, do) == ""
    else:
        do()


def edited(**values: object) -> Callable[[Path, Path], None]:
    """Change fields of an entry, or with `seconds` that of its first run."""

    def edit(entry_: Path, _: Path) -> None:
        about = json.loads((entry_ / board.ABOUT).read_text())
        (about["trials"][0] if {"seconds", "top1"} & {*values} else about).update(values)
        (entry_ / board.ABOUT).write_text(json.dumps(about))

    return edit


def instead(name: str, make: Callable[[Path, Path], object]) -> Callable[[Path, Path], None]:
    """Put something else in the place of a file."""

    def put(entry_: Path, secret: Path) -> None:
        (entry_ / name).unlink()
        make(entry_ / name, secret)

    return put


def folder_of_links(entry_: Path, secret: Path) -> None:
    entry_.rename(entry_.with_name(".own"))
    entry_.symlink_to(secret.parent)


# What a learner puts in the place of an entry, and what the board says of it.
ODD = {
    "a-link": (instead("script.py", Path.symlink_to), "script.py is a link"),
    "a-pipe": (instead("script.py", lambda path, _: os.mkfifo(path)), "is not a regular file"),
    "no-end": (
        instead("entry.json", lambda path, _: path.symlink_to("/dev/zero")),
        "entry.json is a link",
    ),
    "large": (instead("entry.json", lambda path, _: path.write_text(" " * 10**6)), "256 KiB"),
    "a-linked-folder": (folder_of_links, "a-linked-folder is a link, or not a folder"),
    "no-script": (lambda entry_, _: (entry_ / "script.py").unlink(), "script.py is missing"),
    "bytes": (instead("script.py", lambda path, _: path.write_bytes(b"\xff")), "can't decode"),
    "half-a-file": (instead("entry.json", lambda path, _: path.write_text('{"id": "')), "column"),
    "a-list": (instead("entry.json", lambda path, _: path.write_text("[]")), "of type 'object'"),
    "nested": (
        instead("entry.json", lambda path, _: path.write_text("[" * 10**5)),
        "nested too deeply",
    ),
    "text-as-time": (edited(seconds="fast"), "$.trials[0].seconds: 'fast' is not of type"),
    "no-time": (edited(seconds=None), "$.trials[0].seconds"),
    "negative": (edited(seconds=-1), "-1 is less than the minimum"),
    "endless": (edited(seconds=float("inf")), "Infinity is not a number"),
    "huge": (edited(seconds=10**400), "greater than the maximum"),
    "too-good": (edited(top1=2), "2 is greater than the maximum of 1"),
    "null-machine": (edited(machine=None), "$.machine: None is not of type 'string'"),
    "one-run": (edited(trials={"seed": 1}), "$.trials"),
    "odd-settings": (edited(settings={"lr": {"deep": []}}), "$.settings.lr"),
    "other-names": (edited(id="../../secret", track="gpu"), ""),  # the folders' names count
    "a-formula": (edited(name="$\\bad$ <script>"), ""),
    "escapes": (edited(name="\x1b]0;gone\x07\u202e"), ""),
}


@pytest.mark.usefixtures("own_pages")
def test_odd_entries_are_a_line_each_and_hurt_nobody(shared: Path) -> None:
    """The instructor's files stay private, and the others' entries are shown."""
    secret = shared.with_name("private") / board.SCRIPT
    secret.parent.mkdir(mode=0o700)
    for name in (board.SCRIPT, board.ABOUT):
        secret.with_name(name).write_text("the instructor's key")
    page.write(shared)

    def enter() -> None:
        for way, (plant, _) in ODD.items():
            made = posted(shared, way)
            plant((shared / "quick" / made.id).rename(shared / "quick" / way), secret)

    act(ALICE, lambda: posted(shared, "alice"))
    act(MALLORY, enter)
    text = html.unescape(page.write(shared).read_text())
    asked = ["race", "quick", "--board", str(shared)]
    done = CliRunner().invoke(app, asked)
    for way, (_, words) in ODD.items():
        line = next(line for line in done.output.splitlines() if way in line)
        assert (f"quick/{way} is passed over" in line) == bool(words) and words in line
        assert line.strip() in text or not words
    for said in (text, done.output):
        assert "alice" in said and "the instructor" not in said
        assert "\x1b" not in said and "\u202e" not in said
    assert pictures.ways(board.entries(shared, shipped=False), 0.15)["seconds"]._repr_png_()


@needs_root
@pytest.mark.usefixtures("own_pages")
def test_a_hard_link_to_a_private_file_is_not_shown(shared: Path) -> None:
    """As where the system has protected_hardlinks off."""
    page.write(shared)
    (secret := shared.with_name("secret")).write_text("the instructor's key")
    secret.chmod(0o600)
    act(MALLORY, lambda: posted(shared, "odd"))
    script = next(shared.glob("quick/odd*/script.py"))
    script.unlink()
    os.link(secret, script)
    text = page.text(shared)
    assert "script.py belongs to root" in text and "the instructor" not in text


def test_folders_of_a_shared_board_have_its_mode(shared: Path) -> None:
    posted(shared, "alice")
    modes = {path.name: path.stat().st_mode & 0o7777 for path in shared.iterdir()}
    assert modes == dict.fromkeys(("quick", "cpu", "gpu", "node"), 0o1777) | {"verified": 0o755}


@needs_root
@pytest.mark.usefixtures("own_pages")
def test_a_class_enters_and_shows_its_board(
    shared: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Two learners' entries, their pages, and verdicts: only the instructor's counts."""
    os.chown(shared, INSTRUCTOR, INSTRUCTOR)
    page.text(shared)  # imports what each needs
    enter = lambda name: lambda: posted(shared, name)  # noqa: E731
    assert "creates it with: course race --board" in as_somebody(ALICE, enter("alice"))
    act(INSTRUCTOR, lambda: page.write(shared))
    act(ALICE, enter("alice"))
    act(MALLORY, enter("mallory"))
    alice, mallory = board.entries(shared, shipped=False)
    outcome = again.compared(alice, mallory)
    act(MALLORY, lambda: again._store(outcome, mallory, shared))
    assert "who owns the board, can do that" in capfd.readouterr().out
    assert not again.outcomes(mallory, shared)
    act(INSTRUCTOR, lambda: again._store(outcome, alice, shared))
    assert outcome.said in again.outcomes(alice, shared)[0]
    assert not again.outcomes(replace(alice, by="mallory"), shared)  # it was another entry
    act(ALICE, lambda: page.write(shared))
    assert not (shared / page.PAGE).read_text().count(alice.id)  # it is the instructor's
    assert alice.id in (shared.parent / "runs" / page.PAGE).read_text()


@needs_root
@pytest.mark.usefixtures("own_pages")
def test_nobody_takes_the_boards_own_folders(shared: Path) -> None:
    """Who is first to create them could remove entries, and forge verdicts."""
    os.chown(shared, INSTRUCTOR, INSTRUCTOR)

    def squat() -> None:
        for name in ("quick", board.VERIFIED):
            (shared / name).mkdir()
            (shared / name).chmod(0o777)
        made = posted_in(shared / "quick")
        forged = f"{made.id}.{board.fingerprint(made)}.1.json"
        (shared / board.VERIFIED / forged).write_text('{"at": "now", "said": "mallory holds"}')

    act(MALLORY, squat)
    act(INSTRUCTOR, lambda: page.write(shared))
    text = (shared / page.PAGE).read_text()
    mallory, instructor = map(shared_files.user_name, (MALLORY, INSTRUCTOR))
    owners = f"belongs to {mallory}, and the board to {instructor}"
    assert owners in text and "mallory" not in text
    assert owners in as_somebody(ALICE, lambda: posted(shared, "alice"))


def posted_in(track: Path) -> board.Entry:
    """An entry written by hand."""
    made = replace(of(WELL, name="mallory"), id="mallory")
    (track / made.id).mkdir()
    (track / made.id / board.ABOUT).write_text(json.dumps(asdict(made)))
    (track / made.id / board.SCRIPT).write_text("x = 1")
    return made


def test_a_board_where_anyone_replaces_entries_is_refused(shared: Path) -> None:
    shared.chmod(0o777)
    with pytest.raises(ValueError, match=r"no sticky bit. .* sets it with: chmod \+t"):
        posted(shared, "alice")


def test_the_scripts_of_the_shipped_entries_are_the_ones_that_ran() -> None:
    def code(script: str) -> str:
        return ast.dump(ast.Module(ast.parse(script).body[1:], []))  # without its docstring

    for made in board.entries(board.SHIPPED, shipped=False):
        ran = board.script_of(made, board.SHIPPED)
        assert board.digest(ran) == made.sha256
        assert code(ran) == code(entry.shipped(made.name).read_text())


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
