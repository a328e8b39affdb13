"""Boards of a class: wrong entries, folders of several people, interrupted entries."""

import ast
import html
import json
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from race_helpers import GOOD, as_user, entry_of, posted
from typer.testing import CliRunner

from course.__main__ import app
from course.jobs import launch as jobs
from course.runs import all_runs, shared_files, trust
from course.runs.errors import JobError
from race import board, figures, page, submission, verification
from race.entries import MOST_SEEDS, Entry, digest

INSTRUCTOR, ALICE, MALLORY = 41001, 41002, 41003
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users")


@pytest.fixture(autouse=True)
def without_recorded_entries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(board, "RECORDED_ENTRIES", Path("/nothing"))


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a board as an instructor does for a class: everyone can write to it."""
    umask = os.umask(0o022)
    folder = Path(tempfile.mkdtemp(prefix="class-", dir="/tmp"))  # not in a folder of root
    folder.chmod(0o1777)
    (folder / "board").mkdir()
    (folder / "board").chmod(0o1777)
    monkeypatch.setenv("COURSE_RUNS", str(folder / "runs"))
    # Read from copies, because other users may not enter a clone in someone's home.
    for module, name in ((page, "TEMPLATE"), (page, "PUBLISHED")):
        source = getattr(module, name)
        monkeypatch.setattr(module, name, shutil.copyfile(source, folder / source.name))
    yield folder / "board"
    shutil.rmtree(folder)
    os.umask(umask)


def act(uid: int, function: Callable[[], object]) -> None:
    """Call a function as a different user; without root as this one."""
    if os.getuid() == 0:
        assert as_user(uid, function) == ""
    else:
        function()


def edit(**values: object) -> Callable[[Path, Path], None]:
    """Change fields of an entry; `seconds`, `joules` and `top1` are those of its first run."""

    def change(entry: Path, _: Path) -> None:
        content = json.loads((entry / board.ABOUT).read_text())
        target = content["trials"][0] if {"seconds", "joules", "top1"} & {*values} else content
        target.update(values)
        (entry / board.ABOUT).write_text(json.dumps(content))

    return change


def write(name: str, content: bytes) -> Callable[[Path, Path], None]:
    return lambda entry, _: (entry / name).write_bytes(content) and None


def replace_by(name: str, make: Callable[[Path, Path], object]) -> Callable[[Path, Path], None]:
    def change(entry: Path, secret: Path) -> None:
        (entry / name).unlink()
        make(entry / name, secret)

    return change


def link_folder(entry: Path, secret: Path) -> None:
    entry.rename(entry.with_name(".moved"))
    entry.symlink_to(secret.parent)


# Changes that a learner can make to an entry, and the board's message about each.
WRONG = {
    "a-link": (replace_by("script.py", Path.symlink_to), "script.py is a link"),
    "a-pipe": (replace_by("script.py", lambda path, _: os.mkfifo(path)), "is not a regular file"),
    "large": (write("entry.json", b" " * 10**6), "32 KiB"),
    "a-linked-folder": (link_folder, "a-linked-folder is a link, or not a folder"),
    "no-script": (lambda entry, _: (entry / "script.py").unlink(), "script.py is missing"),
    "half-a-file": (write("entry.json", b'{"id": "'), "column"),
    "nested": (write("entry.json", b"[" * 30_000), "nested too deeply"),
    "endless": (edit(seconds=float("inf")), "Infinity is not a number"),
    "too-fast": (edit(seconds=5e-324), "5e-324 is less than the minimum of 0.001"),
    "too-frugal": (edit(joules=5e-324), "5e-324 should not be valid"),
    "too-good": (edit(top1=2), "2 is greater than the maximum of 1"),
    "other-names": (edit(id="../../secret", track="gpu"), ""),  # only the folders' names count
    "a-formula": (edit(name="$\\bad$ <script>"), ""),
    "a-machine": (edit(machine="$\\bad$"), ""),
    "escapes": (edit(name="\x1b]0;gone\x07\u202e"), ""),
}


def test_wrong_entries_are_one_line_each_and_leak_nothing(shared: Path) -> None:
    """The instructor's files stay private, and other entries are shown."""
    secret = shared.with_name("private") / board.SCRIPT
    secret.parent.mkdir(mode=0o700)
    for name in (board.SCRIPT, board.ABOUT):
        secret.with_name(name).write_text("the instructor's key")
    page.board_page(shared)

    def enter() -> None:
        for name, (change, _) in WRONG.items():
            entry = posted(shared, name)
            change((shared / "quick" / entry.id).rename(shared / "quick" / name), secret)

    act(ALICE, lambda: posted(shared, "alice"))
    act(MALLORY, enter)
    text = html.unescape(page.board_page(shared).read_text())
    result = CliRunner().invoke(app, ["race", "quick", "--board", str(shared)])
    for name, (_, words) in WRONG.items():
        line = next(line for line in result.output.splitlines() if name in line)
        assert (f"quick/{name} is not shown" in line) == bool(words) and words in line
        assert line.strip() in text or not words
    for shown in (text, result.output):
        assert "alice" in shown and "the instructor" not in shown
        assert "\x1b" not in shown and "\u202e" not in shown


@needs_root
def test_a_class_enters_and_shows_its_board(shared: Path, capfd: pytest.CaptureFixture) -> None:
    """Two learners enter; only the instructor can store verifications."""
    os.chown(shared, INSTRUCTOR, INSTRUCTOR)
    page.render_page(shared)  # imports what the other users need
    assert "creates it with: course race --board" in as_user(ALICE, lambda: posted(shared, "alice"))
    act(INSTRUCTOR, lambda: page.board_page(shared))
    modes = {path.name: path.stat().st_mode & 0o7777 for path in shared.iterdir() if path.is_dir()}
    assert modes == dict.fromkeys(("quick", "cpu", "gpu", "node"), 0o1777) | {"verified": 0o755}
    act(ALICE, lambda: posted(shared, "alice"))
    act(MALLORY, lambda: posted(shared, "mallory"))
    alice, mallory = board.read_entries(shared)
    outcome = verification.compare(alice, mallory)
    act(MALLORY, lambda: verification.store(outcome, mallory, shared))
    assert "who owns the board, can do that" in capfd.readouterr().out
    assert not verification.read_outcomes(mallory, shared)
    act(INSTRUCTOR, lambda: verification.store(outcome, alice, shared))
    assert outcome.summary in verification.read_outcomes(alice, shared)[0]
    assert not verification.read_outcomes(replace(alice, by="mallory"), shared)
    act(ALICE, lambda: page.board_page(shared))
    assert alice.id not in (shared / page.PAGE).read_text()  # it is the instructor's
    assert alice.id in (shared.parent / "runs" / page.PAGE).read_text()


@needs_root
def test_a_folder_of_the_pages_name_leaves_its_owner_a_page_elsewhere(
    shared: Path, capfd: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.chown(shared, INSTRUCTOR, INSTRUCTOR)
    page.render_page(shared)  # imports what the other users need
    act(MALLORY, (shared / page.PAGE).mkdir)

    def show_live() -> None:
        def interrupt(_: float) -> None:
            (shared / page.PAGE).rmdir()  # as the classmate could
            posted(shared, "alice")
            raise KeyboardInterrupt

        monkeypatch.setattr(page.time, "sleep", interrupt)
        page.keep_writing(page.board_page(shared), shared)

    act(INSTRUCTOR, show_live)
    shown = shared.parent / "runs" / page.PAGE
    assert f"your page is {shown}" in capfd.readouterr().err
    assert "alice" in shown.read_text()  # the page that is open in a browser


@needs_root
def test_a_script_that_others_can_change_is_not_entered(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(trust.VARIABLE, raising=False)
    script = shared.parent / "mine.py"
    script.write_text("SETTINGS = {}")
    script.chmod(0o666)
    with pytest.raises(JobError, match="mine.py: everyone on this machine can change it"):
        submission.enter("quick", script, to=shared)


@needs_root
def test_nothing_takes_the_place_of_the_owners_page(shared: Path) -> None:
    os.chown(shared, INSTRUCTOR, INSTRUCTOR)
    act(INSTRUCTOR, lambda: board.prepare(shared))
    for replace_page in ((shared / page.PAGE).unlink, (shared / page.PAGE).mkdir):
        assert as_user(MALLORY, replace_page)


@needs_root
def test_one_account_cannot_make_a_board_slow(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Validating an entry takes up to 0.05 s, and anyone can write thousands."""
    names = {ALICE: "a", MALLORY: "m"}
    monkeypatch.setattr(shared_files, "account_name", lambda uid: names.get(uid, ""))
    monkeypatch.setattr(board, "MOST_ENTRIES", 3)
    board.prepare(shared)
    alice = posted(shared, "alice")
    os.chown(shared / "quick" / alice.id, ALICE, ALICE)
    for name in (board.SCRIPT, board.ABOUT):
        os.chown(shared / "quick" / alice.id / name, ALICE, ALICE)
    act(MALLORY, lambda: [posted(shared, f"flood{number}") for number in range(5)])
    for number, path in enumerate(sorted((shared / "quick").glob("flood*"))):
        os.utime(path, (number, number))
    large = next((shared / "quick").glob("flood4*")) / board.ABOUT
    large.write_text(large.read_text() + " " * board.MOST_BYTES)
    entries, problems = board.read_board(shared)
    assert sorted(entry.name for entry in entries) == ["alice", "flood2", "flood3"]
    user = shared_files.user_name(MALLORY)
    assert problems[0] == f"quick: the 2 oldest entries of {user} are not shown"
    assert "has more than 32 KiB" in problems[1] and len(problems) == 2
    for number, path in enumerate((shared / "quick").glob("flood*")):  # as in a user namespace
        os.chown(path, 300_000 + number, MALLORY)
    large.write_text("[" + "0," * 16_000 + "0]")
    os.chown(large, large.parent.stat().st_uid, MALLORY)
    _, problems = board.read_board(shared)
    assert problems[0] == "quick: the 2 oldest entries of unknown accounts are not shown"
    assert any("has more than 1,000 values" in line for line in problems)
    monkeypatch.setattr(board, "MOST_ENTRIES", 0)
    posted(shared, "owner")
    assert [entry.name for entry in board.read_entries(shared)] == ["owner"]


@needs_root
def test_a_flood_of_names_is_not_read_to_its_end_and_its_author_is_named(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another user can create 300,000 in seconds."""
    board.prepare(shared)
    monkeypatch.setattr(board, "MOST_NAMES", 5)
    act(MALLORY, lambda: [(shared / "quick" / f".{number}").touch() for number in range(9)])
    user = shared_files.user_name(MALLORY)
    entries, problems = board.read_board(shared, recorded=False)
    assert problems == [f"quick: only 5 names were read; {user} has 5"] and not entries


def test_a_picture_has_room_for_curves_beside_their_names() -> None:
    """One account may have 50 entries; with 40 names, the axes had no room."""
    entries = [entry_of([0.3], name=f"entry-{number}") for number in range(40)]
    picture = figures.plot_accuracies(entries, 0.15)["seconds"]
    (axes,) = picture.axes
    assert len(picture.legends[0].get_texts()) == figures.MOST_CURVES + 1  # and the target
    assert "(not shown: 16)" in axes.get_title(loc="left") + axes.get_title()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        picture._repr_html_()


def test_a_folder_that_others_can_write_is_no_entry_of_its_owner(shared: Path) -> None:
    """In a group's folder, a classmate can fill your folder, and move it to the board."""
    board.prepare(shared)
    entry = posted(shared, "alice")
    (shared / "quick" / entry.id).chmod(0o775)
    entries, (line,) = board.read_board(shared)
    assert entries == [] and "others can write to its folder" in line


def test_repeated_lines_cost_a_page_no_minutes(tmp_path: Path) -> None:
    """Each match of one line would be looked for among all that are equal: 0.9 s an entry."""
    board.prepare(tmp_path)
    lines = ["x = 1"] * 1000, ["x = 1", "y = 1"] * 100
    entries = [posted(tmp_path, f"entry{n}", "\n".join(text)) for n, text in enumerate(lines)]
    assert page.diff(tmp_path, *entries).startswith("not shown")
    short = posted(tmp_path, "short", "x = 1\n" * 50)
    assert page.diff(tmp_path, short, entries[1]).count("\n") > 50


@needs_root
def test_the_account_is_shown_if_an_entry_has_another_name(shared: Path) -> None:
    page.render_page(shared)  # imports what the other user needs
    board.prepare(shared)
    act(MALLORY, lambda: posted(shared, replace(entry_of(GOOD), by="alice")))
    (entry,) = board.read_entries(shared)
    author = f"{shared_files.user_name(MALLORY)} (signs as alice)"
    assert entry.author == author and author in page.render_page(shared)
    assert any(author in row for row in page.rows([entry])[1])
    assert replace(entry, owner="alice").author == replace(entry, owner="").author == "alice"
    assert replace(entry, owner="alice").fingerprint == entry.fingerprint


def test_a_page_has_a_limited_number_of_boards_and_some_of_each_person(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine's name may be anything, and each board has pictures."""
    monkeypatch.setattr(page, "MAX_BOARDS", 3)
    entries = [replace(entry_of(GOOD, machine=f"a{x}"), owner="mallory") for x in range(6)]
    shared_by = [replace(entry_of(GOOD, machine="shared"), owner=x) for x in ("bob", "mallory")]
    entries += [*shared_by, replace(entry_of(GOOD, machine="laptop"), owner="alice")]
    shown = [machine for (_, machine), _ in page._shown([*page._groups(entries)])]
    assert shown == ["a0", "laptop", "shared"]
    monkeypatch.setattr(board, "read_board", lambda *_, **__: (entries, []))
    assert "boards that are not shown: 5." in page.render_page(tmp_path)


def test_a_script_is_verified_only_by_those_who_were_asked(
    tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = posted(tmp_path, "mine", "SETTINGS = {}\nprint('mine')\n")
    ran = []
    monkeypatch.setattr(verification, "run_all", lambda *_: ran.append(1) or entry)
    command = ["race", "--board", str(tmp_path), "--verify", entry.id]
    result = CliRunner().invoke(app, command)
    assert (
        "Have you read the script, and may it run? There is no terminal" in str(result.exception)
        and not ran
    )
    assert all(x in result.output for x in ("(signs as me), and will", "(2 lines, 28 bytes)"))
    copy = runs_root / f"verify-{entry.id}.py"
    assert copy.read_text() == "SETTINGS = {}\nprint('mine')\n" and str(copy) in result.output
    for answer, expected in (("n", []), ("y", [1])):
        monkeypatch.setattr("course.cli.options.sys", SimpleNamespace(stdin=Terminal()))
        CliRunner().invoke(app, command, input=f"{answer}\n")
        assert ran == expected
    CliRunner().invoke(app, [*command, "--yes"])
    assert ran == [1, 1]


class Terminal:
    """A standard input in which someone can answer."""

    def isatty(self) -> bool:
        return True


@needs_root
def test_a_learner_cannot_take_the_boards_folders(shared: Path) -> None:
    """A learner who creates them first could remove entries and forge verifications."""
    os.chown(shared, INSTRUCTOR, INSTRUCTOR)

    def take() -> None:
        for name in ("quick", board.VERIFIED):
            (shared / name).mkdir()
            (shared / name).chmod(0o777)
        entry = replace(entry_of(GOOD, name="mallory"), id="mallory")
        (shared / "quick" / entry.id).mkdir()
        (shared / "quick" / entry.id / board.ABOUT).write_text(json.dumps(asdict(entry)))
        (shared / "quick" / entry.id / board.SCRIPT).write_text("x = 1")
        forged = f"{entry.id}.{entry.fingerprint}.1.json"
        (shared / board.VERIFIED / forged).write_text(
            '{"at": "now", "said": "mallory is confirmed"}'
        )

    act(MALLORY, take)
    act(INSTRUCTOR, lambda: page.board_page(shared))
    text = (shared / page.PAGE).read_text()
    mallory, instructor = map(shared_files.user_name, (MALLORY, INSTRUCTOR))
    owners = f"belongs to {mallory}, and {shared.name} to {instructor}"
    assert owners in text and "mallory" not in text
    assert owners in as_user(ALICE, lambda: posted(shared, "alice"))


def test_scripts_of_recorded_entries_are_those_in_solutions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()

    def code(script: str) -> str:
        parts = map(ast.unparse, ast.parse(script).body[1:])  # without its docstring
        return "\n".join(part for part in parts if not part.startswith("SETTINGS"))

    entries = board.read_entries(board.RECORDED_ENTRIES, recorded=False)
    for entry in entries:
        script = board.script_of(entry, board.RECORDED_ENTRIES)
        assert digest(script) == entry.sha256
        shipped = submission.course_script(entry.name).read_text()
        assert code(script) == code(shipped)
        assert entry.settings == submission.read_settings(shipped, entry.track)
    monkeypatch.setattr(verification, "run_all", lambda *_: entries[0])  # it takes minutes
    outcome = verification.verify(entries[0].id, to=tmp_path)
    (line,) = verification.read_outcomes(entries[0], tmp_path)  # on your board
    assert line.endswith(outcome.summary)


def test_a_changed_script_is_reported_and_not_verified(tmp_path: Path) -> None:
    first, entry = posted(tmp_path, "first"), posted(tmp_path, "mine", "SETTINGS = {'lr': 2}\n")
    assert "+SETTINGS = {'lr': 2}" in page.diff(tmp_path, first, entry)
    large = posted(tmp_path, "large", "# long" * 40_000)
    assert len(page.diff(tmp_path, entry, large)) < page.MAX_DIFF / 10
    warning, script = "is not the one that was entered", tmp_path / "quick" / entry.id / "script.py"
    assert board.is_as_entered(entry, tmp_path) and warning not in page.render_page(tmp_path)
    script.write_text("SETTINGS = {}  # clean now\n")
    assert warning in page.render_page(tmp_path)
    with pytest.raises(ValueError, match="is not what was entered"):
        verification.verify(entry.id, to=tmp_path)
    script.unlink()
    assert page.diff(tmp_path, first, entry) == ""


def test_the_copy_to_read_hides_nothing_in_a_terminal(tmp_path: Path) -> None:
    script = "SETTINGS = {}\nimport os  #\x1b[2K\x1b[1A\r harmless\n"
    entry = posted(tmp_path, "plain2", script)

    def refuse(text: str) -> None:
        copy = Path(text.split("Read it first: ")[1].rsplit(" (", 1)[0])
        assert "import os  #\\x1b[2K\\x1b[1A" in copy.read_text()
        raise KeyError

    with pytest.raises(KeyError):
        verification.verify(entry.id, to=tmp_path, confirm=refuse)


def test_an_interrupted_entry_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def enter_until(error: type[BaseException]) -> list[Entry]:
        def run(*_: object) -> None:
            raise error

        monkeypatch.setattr(submission, "_run", run)
        with pytest.raises(error):
            submission.enter("quick", "plain", to=tmp_path)
        return board.read_entries(tmp_path)

    assert not enter_until(OSError)  # such as a site that cannot be reached
    (entry,) = enter_until(KeyboardInterrupt)
    assert not entry.counts and "interrupted by its author" in entry.verdict
    assert len(entry.seeds) == 3 and entry.id in page.render_page(tmp_path)


def test_ctrl_c_ends_the_run_and_the_entry_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(jobs, "_follow", interrupt)  # it waits for the run
    with pytest.raises(KeyboardInterrupt):
        submission.enter("quick", "plain", to=tmp_path / "board")
    (entry,) = board.read_entries(tmp_path / "board")
    assert "interrupted by its author" in entry.verdict
    assert [run.status for run in all_runs()] == ["cancelled"]


@pytest.mark.parametrize(("seconds", "holds"), [(1.0, False), (4.9, True), (9.0, True)])
def test_a_time_that_the_same_machine_does_not_reach_is_not_confirmed(
    seconds: float, holds: bool
) -> None:
    repeated = entry_of(GOOD)
    repeated = replace(repeated, trials=tuple(replace(t, seconds=5.0) for t in repeated.trials))
    claimed = replace(repeated, trials=tuple(replace(t, seconds=seconds) for t in repeated.trials))
    outcome = verification.compare(claimed, repeated)
    assert outcome.holds is holds and (" is confirmed" in outcome.summary) is holds


def test_an_entry_is_small_enough_for_a_page_of_200(tmp_path: Path) -> None:
    """Of its size depend the time and the size of everyone's page, and names of files."""
    one = entry_of([0.3 + seed / 1000 for seed in range(MOST_SEEDS)])
    (axes,) = figures.plot_accuracies([one], 0.15)["seconds"].axes
    assert len(axes.lines) == 3  # all trials, their median, and the target
    first = posted(tmp_path, one)
    many = replace(one, id="many", trials=(*one.trials, one.trials[0]))
    changed = posted(tmp_path, "changed", "\n".join(f"{line:0250}" for line in range(900)))
    text = page.diff(tmp_path, first, changed)
    assert len(text) < page.MAX_DIFF + 100 and text.endswith("the rest is not shown")
    short = posted(tmp_path, "short", "\n".join(map(str, range(900))))
    assert page.diff(tmp_path, first, short).count("\n") == page.MAX_CHANGES
    posted(tmp_path, many)
    posted(tmp_path, replace(one, id="i" * 121))
    entries, problems = board.read_board(tmp_path)
    assert len(entries) == 3 and len(problems) == 2
    assert "at most 120 bytes" in problems[0] and "$.trials" in problems[1]
    with pytest.raises(ValueError, match="track quick needs 3 to 20"):
        submission.enter("quick", "plain", seeds=21, to=tmp_path)
    for options in ({"name": "n" * 95}, {"name": "é" * 50}, {"by": "b" * 81}):
        with pytest.raises(ValueError, match=r"at most 120 bytes|\$\.(by|name)"):
            submission.enter("quick", "plain", to=tmp_path, **options)
