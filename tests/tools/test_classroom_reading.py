"""The instructor's view of a class, whatever learners put into the drop box."""

import csv
import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from classroom_helpers import ago, make_class, message, put, some_message
from race_helpers import as_user
from typer.testing import CliRunner

from course.__main__ import app
from course.checks import shared_progress
from course.checks.shared_progress import DROP
from course.checks.verdict import Part
from course.runs import shared_files
from tools.classroom import drop_box, membership, page, report

ALICE, MALLORY, INSTRUCTOR = 41002, 41003, 41001
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users")
FAILED = {"correct": "failed", "mechanism": "", "effect": ""}
WORDS = "update once per batch"
ESCAPES = "\x1b]0;owned\x07\x1b[2J<script>alert(1)</script>\u202e'\""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a class in a folder that all users can enter."""
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm
    known = shared_files.account_name
    for module in (shared_files, drop_box):  # the learners here have accounts
        monkeypatch.setattr(module, "account_name", lambda uid: _learner(uid) or known(uid))
    with tempfile.TemporaryDirectory(prefix="class-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield make_class(Path(name) / "class")


def _learner(uid: int) -> str:
    return f"user {uid}" * (41_000 <= uid < 42_000)


def course(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def changed(**changes: Any) -> dict[str, Any]:
    """Return a message whose check `amp` has other fields."""
    content = message()
    content["checks"]["amp"] |= changes
    return content


DEEP = b'{"schema": 1, "hand": ' + b"[" * 8000
WRONG = {  # content of a file, and words of the line about it
    "no JSON": (b"\xff\xfe", "codec can't decode"),
    "half": (b'{"schema": 1', "delimiter"),
    "a list": ([], "not an object"),
    "another schema": (message(schema=2), "schema is 2"),
    "nested": (DEEP, "nested too deeply"),
    "large": (b" " * 17000, "more than 16 KiB"),
    "NaN": (changed(tries=float("nan")), "NaN is not a number"),
    "infinity": (json.dumps(changed(tries=77)).replace("77", "1e400").encode(), "tries is inf"),
    "huge": (json.dumps(message(quizzes={"gpu": {"answered": 10**4000, "right": 1}})).encode(),
             "answered is 1000"),
    "more digits": (b'{"schema": ' + b"9" * 5000 + b"}", "Exceeds the limit"),
    "negative tries": (changed(tries=-1), "expected 1 to"),
    "tries of a bool": (changed(tries=True), "expected 1 to"),
    "an unknown state": (changed(state="great"), "expected passed"),
    "a state of a list": (changed(state=[]), "expected passed"),
    "the future": (changed(checked_at="2999-01-01T00:00:00+00:00"), "not in the future"),
    "no time": (changed(checked_at="x" * 1000), "expected a time"),
    "year one": (message(sent_at="0001-01-01T00:00:00+14:00"), "expected a time"),
    "a long cause": (changed(cause="x" * 300), "up to 200 characters"),
    "a question": (message(hand={"text": "x" * 301, "check": "", "at": ago(1)}), "up to 300"),
    "more right": (message(quizzes={"gpu": {"answered": 1, "right": 2}}), "expected 0 to 1"),
    "a prediction": (message(predictions={"amp": {"value": 1e301}}), "expected a number"),
    "a tiny prediction": (message(predictions={"amp": {"value": 0, "measured": 5e-323}}),
                          "expected a number"),
    "a prediction of a list": (message(predictions={"amp": {"value": [1]}}), "expected a number"),
    "escapes": (changed(state=ESCAPES), "tries"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_file_is_a_line_and_nothing_else(place: Path, name: str) -> None:
    content, words = WRONG[name]
    put(place, os.getuid(), content)
    learners, (line,) = drop_box.read(place)
    assert learners == [] and " is not shown: " in line and line.isprintable() and len(line) < 300
    assert words in line or name == "escapes"
    assert "No one has joined yet" in course("class", str(place))


def test_unknown_names_are_ignored(place: Path) -> None:
    """The learner's course may be newer; what is unknown is never shown."""
    content = message(todos={ESCAPES: "x", "amp": "edited"}, quizzes={ESCAPES: 3}, more=ESCAPES)
    content["checks"][ESCAPES] = content["predictions"][ESCAPES] = {"state": ESCAPES}
    put(place, os.getuid(), content)
    (learner,), problems = drop_box.read(place)
    assert not problems and {*learner.checks} == {"amp", "device"}
    assert ESCAPES not in str(learner)


def test_texts_can_control_neither_the_terminal_nor_the_page(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    user = f"al{ESCAPES}".replace("/", "")
    for module in (drop_box, shared_files):
        for name in ("user_name", "account_name"):
            monkeypatch.setattr(module, name, lambda uid: user)
    content = changed(cause=f"=1;=2{ESCAPES}")
    content["hand"] = {"text": ESCAPES, "check": ESCAPES, "at": ago(3)}
    content["predictions"]["sizes"] = {"value": ESCAPES[:60], "measured": ESCAPES[:60]}
    put(place, os.getuid(), content, user)
    put(place, os.getuid(), content, f"bob{ESCAPES}".replace("/", ""))
    table = tmp_path / "class.csv"
    shown = course("class", str(place), "--csv", str(table))
    shown += course("class", str(place), "--prediction", "sizes")
    for text in (shown, *(path.read_text() for path in (tmp_path / "runs").glob("*.html"))):
        assert "alert(1)" in text
        assert all(character.isprintable() or character == "\n" for character in text)
    for path in (tmp_path / "runs").glob("*.html"):
        assert "<script" not in path.read_text() and "default-src 'none'" in path.read_text()
    rows = [*csv.DictReader(table.open())]
    assert any(row["cause"].startswith("'=") for row in rows)
    german = [cell for row in csv.reader(table.open(), delimiter=";") for cell in row]
    assert not any(cell.startswith("=") for cell in german)


def test_one_prediction_far_from_all_others_breaks_no_histogram(place: Path) -> None:
    guesses = [1.1 / drop_box.LARGEST * x for x in range(1, 6)] + [0.9 * drop_box.LARGEST]
    for uid, guess in enumerate(guesses):
        put(place, os.getuid(), message(predictions={"amp": {"value": guess}}))
        (learner,), _ = drop_box.read(place)
        guesses[uid] = learner
    assert sum(bar.count for bar in report.histogram(guesses, "amp").bars) == len(guesses)


def link(path: Path, secret: Path) -> None:
    path.symlink_to(secret)


def hard_link(path: Path, secret: Path) -> None:
    os.link(secret, path)


# What Mallory can make instead of a regular file of her own.
MADE = {
    "a link": (link, "1 links"),
    "a dangling link": (lambda path, _: path.symlink_to("/nothing"), "1 links"),
    "a pipe": (lambda path, _: os.mkfifo(path), "is not a regular file"),
    "a folder": (lambda path, _: path.mkdir(), "is not a regular file"),
    "a gigabyte": (lambda path, _: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 10**9),
                   "more than 16 KiB"),
    "no permission": (lambda path, _: (path.write_text("{}"), path.chmod(0)), ""),
}  # fmt: skip


@needs_root
@pytest.mark.parametrize("kind", MADE)
def test_an_instructor_reads_regular_files_only(place: Path, kind: str) -> None:
    make, words = MADE[kind]
    for path in (place, place / DROP):
        os.chown(path, INSTRUCTOR, INSTRUCTOR)
    (place / DROP).chmod(0o3733)
    secret = place.parent / "secret"
    secret.write_text(json.dumps(message()))
    secret.chmod(0o644)
    put(place, ALICE, message())
    user = shared_files.user_name(MALLORY)
    path = place / DROP / f"{user}-{1:016x}.json"
    assert as_user(MALLORY, lambda: make(path, secret)) == ""

    def read() -> None:
        (alice,), (line,) = drop_box.read(place)
        assert alice.name == shared_files.user_name(ALICE)
        assert line.startswith(user) and words in line, line

    assert as_user(INSTRUCTOR, read) == ""


@needs_root
def test_a_second_name_of_another_file_is_not_read(place: Path) -> None:
    """Systems without protected_hardlinks let Mallory link a file of Alice's into the box."""
    old = place.parent / "old.json"
    old.write_text(json.dumps(message()))
    os.chown(old, ALICE, ALICE)
    os.link(old, place / DROP / f"{shared_files.user_name(ALICE)}-{1:016x}.json")
    learners, (line,) = drop_box.read(place)
    assert learners == [] and "is a link" in line


@needs_root
def test_a_name_of_someone_else_counts_for_no_one(place: Path) -> None:
    put(place, ALICE, message())
    for number in range(1, 4):
        hand = {"text": "I am Alice", "check": "", "at": ago(0)}
        put(place, MALLORY, message(hand=hand), shared_files.user_name(ALICE), number=number)
    (alice,), (line,) = drop_box.read(place)
    assert alice.hand is None and line.startswith(f"{shared_files.user_name(MALLORY)}: 3 ")


@needs_root
def test_a_file_that_a_group_can_write_is_no_message_of_its_owner(place: Path) -> None:
    """With umask 002, a classmate can write a text into your file, and move it into the box."""
    put(place, ALICE, message())
    hand = {"text": "I am Alice", "check": "", "at": ago(0)}
    put(place, ALICE, message(hand=hand), number=1).chmod(0o664)
    (alice,), (line,) = drop_box.read(place)
    assert alice.hand is None and "files that others can write" in line


@needs_root
def test_a_flood_names_its_author_and_hides_no_one(place: Path) -> None:
    for number in range(10_000):
        path = place / DROP / f"{shared_files.user_name(MALLORY)}-{number:016x}.json"
        path.touch()
        os.chown(path, MALLORY, -1)
    put(place, ALICE, message())
    learners, problems = drop_box.read(place)
    assert [learner.name for learner in learners] == [shared_files.user_name(ALICE)]
    (flood,) = [line for line in problems if "10,000 files" in line]
    assert flood.startswith(shared_files.user_name(MALLORY)) and f"-uid {MALLORY} -delete" in flood
    assert len(problems) == 2  # her newest file is empty


@needs_root
def test_uids_without_an_account_are_no_learners(place: Path) -> None:
    """In a user namespace, one account can write as thousands of them."""
    put(place, ALICE, message())
    for number in range(30):
        ghost = 200_000 + number
        put(place, ghost, message(hand={"text": "me", "check": "", "at": ago(0)}), f"user {ghost}")
    (alice,), problems = drop_box.read(place)
    assert alice.name == shared_files.user_name(ALICE) and len(problems) == 2
    assert "has 30 files" in problems[0] and "-nouser -delete" in problems[0]


def test_what_cannot_be_examined_hides_no_one_and_stays_at_the_end(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A learner can mount a disk over a folder of theirs, into which no one else may look."""
    put(place, os.getuid(), message())
    (place / DROP / "mounted" / "x").mkdir(parents=True)
    scan = os.scandir

    class Entry:
        def __init__(self, entry: os.DirEntry) -> None:
            self.name, self._entry = entry.name, entry

        def stat(self, **options: bool) -> os.stat_result:
            if self.name == "mounted":
                raise PermissionError(13, "Permission denied")
            return self._entry.stat(**options)

    @contextmanager
    def scandir(folder: int) -> Iterator[list[Entry]]:
        with scan(folder) as entries:
            yield [Entry(entry) for entry in entries]

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scandir)
        learners, (line,) = drop_box.read(place)
        assert len(learners) == 1 and line.startswith(drop_box.NO_NAME)
        count, (line,) = drop_box.remove(place)
    assert count == 1 and "mounted of " in line and not (place / DROP).exists()


def test_a_file_that_is_replaced_while_it_is_read(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(place, os.getuid(), message())
    read_text = shared_files.read_text

    def replaced(*words: Any, **options: Any) -> str:
        path.unlink()
        path.symlink_to("/etc/passwd")
        return read_text(*words, **options)

    monkeypatch.setattr(shared_files, "read_text", replaced)
    learners, (line,) = drop_box.read(place)
    assert learners == [] and "is a link" in line


def test_the_newest_file_of_a_learner_counts(place: Path) -> None:
    for number, minutes in ((1, 50), (2, 3), (3, 80)):
        path = put(place, os.getuid(), message(sent_at=ago(minutes)), number=number)
        os.utime(path, (1e9 - minutes, 1e9 - minutes))
    (learner,), problems = drop_box.read(place)
    assert 3 <= report.minutes_since(learner.sent_at) < 4 and not problems


def test_a_folder_without_a_box_and_a_misspelt_command_are_explained(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match="has no drop box"):
        course("class", str(tmp_path))
    with pytest.raises(ValueError, match="commands of course class: .*join"):
        course("class", "jion")
    assert "Usage" in course("class")
    put(place, os.getuid(), message())
    monkeypatch.setenv("COURSE_CLASS", str(place))
    assert "amp" in course("class")
    assert "amp" in course("class", "--prediction", "amp")
    with pytest.raises(ValueError, match="/nowhere/x.csv can't be written: No such file"):
        course("class", "--csv", "/nowhere/x.csv")


@needs_root
def test_learners_cannot_list_the_box(place: Path) -> None:
    os.chown(place / DROP, INSTRUCTOR, INSTRUCTOR)
    os.chown(place, INSTRUCTOR, INSTRUCTOR)
    (place / DROP).chmod(0o3733)
    assert "only instructors can list" in as_user(ALICE, lambda: drop_box.read(place))


def tried(state: str, tries: int, minutes: float, cause: str = "") -> dict[str, Any]:
    since = {"failing_since": ago(minutes)} if state == "failed" else {}
    return {"state": state, "tries": tries, "checked_at": ago(1), "cause": cause} | since


@pytest.fixture
def four(place: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a class of four learners, who are all this user."""
    failed = {
        "ada": {"amp": tried("failed", 2, 5, "correct: one"), "compile": tried("failed", 7, 9)},
        "bob": {"amp": tried("failed", 7, 60, "correct: one")},
        "eve": {"amp": tried("failed", 9, 99, "correct: two"), "device": tried("passed", 1, 9)},
        "tim": {"amp": tried("passed", 4, 1, "correct: one")},
    }
    hands = {"tim": {"text": "Why?", "check": "amp", "at": ago(4)}}
    values = {"ada": 1.0, "bob": 1.4, "eve": 4.2, "tim": 1e9}
    learners = []
    for name, checks in failed.items():
        todos = {"amp": "given"} if name == "eve" else {"amp": "edited", "mixup": "edited"}
        predictions = {"amp": {"value": values[name], "measured": 2.0}}
        predictions["sizes"] = {"value": "small" if name == "ada" else "large"}
        changes = {"todos": todos, "checks": checks, "predictions": predictions}
        text = json.dumps(message(hand=hands.get(name), **changes))
        learners.append(drop_box.parse(text, name))
    monkeypatch.setattr(drop_box, "read", lambda folder: (learners, ["mallory is not shown"]))
    return place


def test_the_view_shows_hands_first_then_who_is_stuck_and_why(four: Path) -> None:
    lines = course("class", str(four)).splitlines()
    assert lines[1].split() == ["tim", "4", "min", "amp", "Why?"]
    names = [line.split()[0] for line in lines[2:] if line[:4] in ("ada ", "bob ", "eve ", "tim ")]
    assert names == ["tim", "bob", "ada", "eve"]  # of 7 tries each, bob has waited longer
    values = json.JSONDecoder().raw_decode(course("class", str(four), "--json"))[0]
    (amp,) = [row for row in values["exercises"] if row["exercise"] == "amp"]
    assert (amp["passed"], amp["failed"], amp["given"], amp["tries"]) == (1, 2, 1, 5.5)
    assert (amp["cause"], amp["learners"]) == ("correct: one", 3)
    rows = [*csv.DictReader(report.as_csv(drop_box.read(four)[0]).splitlines())]
    assert [row["state"] for row in rows if row["exercise"] == "amp"] == [
        "failed", "failed", "given", "passed"
    ]  # fmt: skip


def test_an_exercise_that_was_left_aside_is_not_where_a_learner_is_stuck() -> None:
    old = tried("failed", 9, 200) | {"checked_at": ago(100)}
    checks = {"device": old, "amp": tried("failed", 2, 20), "compile": tried("failed", 1, 5)}
    learner = drop_box.parse(json.dumps(message(checks=checks)), "ada")
    assert report.stuck_on(learner).exercise == "amp"
    learner = drop_box.parse(json.dumps(message(checks={"device": old})), "ada")
    assert report.stuck_on(learner).exercise == "device"


def test_the_page_is_for_the_instructor_and_reloads_while_live(
    four: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def wait(_: float) -> None:
        written.append(path.read_text())
        if len(written) == 2:  # the disk is gone, and back
            monkeypatch.setattr(drop_box, "read", lost)
        if len(written) == 3:
            monkeypatch.setattr(drop_box, "read", read)
            raise KeyboardInterrupt

    def lost(folder: Path) -> None:
        raise OSError("Stale file handle")

    path, read = Path(os.environ["COURSE_RUNS"]) / page.PAGE, drop_box.read
    monkeypatch.setattr(page.time, "sleep", wait)
    assert "Stale file handle" in course("class", str(four), "--live")
    assert ['http-equiv="refresh"' in text for text in written] == [True] * 3
    assert "refresh" not in path.read_text()  # it would wait for nothing
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    for text in ("tim", "Why?", "correct: one", "mallory is not shown", "measured: 2"):
        assert text in path.read_text()


def test_a_histogram_has_the_measured_value_and_far_values_do_not_hide_others(four: Path) -> None:
    learners, _ = drop_box.read(four)
    amp = report.histogram(learners, "amp")
    assert amp.measured == "2" and amp.count == 4 and amp.measurements == 4
    assert [bar.count for bar in amp.bars if bar.is_measured] in ([0], [1])
    assert amp.bars[-1].label.startswith("from ") and amp.bars[-1].count == 1
    assert sum(bar.count for bar in amp.bars) == 4 and len(amp.bars) <= report.MOST_BINS + 3
    sizes = report.histogram(learners, "sizes")
    assert [(bar.label, bar.count) for bar in sizes.bars] == [("large", 3), ("small", 1)]
    shown = course("class", str(four), "--prediction", "amp")
    assert "← measured: 2" in shown and "tim" not in shown
    large = (Path(os.environ["COURSE_RUNS"]) / page.PREDICTION_PAGE).read_text()
    assert "measured: 2" in large and "tim" not in large
    with pytest.raises(ValueError, match="there are amp, sizes"):
        report.histogram(learners, "anp")
    of_slurm = [replace(x, predictions={"amp on slurm": x.predictions["amp"]}) for x in learners]
    assert report.histogram(of_slurm, "amp").count == 4
    with pytest.raises(ValueError, match="there are amp on a, amp on b"):
        both = {f"amp on {site}": learners[0].predictions["amp"] for site in "ab"}
        report.histogram([replace(learners[0], predictions=both)], "amp")


@pytest.mark.parametrize(
    "values",
    [[1], [3, 3, 3], [-1, 0, 1], [1e-9, 9e299], [-9e299] * 3 + [9e299] * 9, [0.0] * 9 + [5.0]],
)
@pytest.mark.parametrize("measured", [None, 3, -9e299])
def test_any_numbers_have_a_histogram(values: list[float], measured: float | None) -> None:
    bars = report._bars(values, measured)
    assert sum(bar.count for bar in bars) == len(values) and len(bars) <= report.MOST_BINS + 4
    assert sum(bar.is_measured for bar in bars) == (measured is not None)


SQUEUE = """#!/bin/sh
echo "$*" > {args}
echo 'a banner of the site'
echo 'ada|Priority'
echo 'ada|Priority'
echo 'bob|Node<s> required'
"""


def test_waiting_jobs_are_shown_with_reasons(tmp_path: Path, monkeypatch) -> None:
    program = tmp_path / "squeue"
    program.write_text(SQUEUE.format(args=tmp_path / "args"))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    jobs = report.waiting_jobs(["ada", "bob", "x,--me"])
    assert jobs == {"ada": "2 (Priority)", "bob": "1 (Node<s> required)"}
    assert "--user=ada,bob" in (tmp_path / "args").read_text()
    program.write_text("#!/bin/sh\nexit 1\n")
    assert report.waiting_jobs(["ada"]) == {}
    program.unlink()
    if not shutil.which("squeue"):
        assert report.waiting_jobs(["ada"]) == {}


@needs_root
def test_twenty_learners_of_a_real_class(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each joins, checks, predicts and asks as a user of their own."""
    states = shared_progress._todo_states()  # others may not enter a clone in someone's home
    monkeypatch.setattr(shared_progress, "_todo_states", lambda: states)
    shared_progress.message({})
    for path in (place, place / DROP):
        os.chown(path, INSTRUCTOR, INSTRUCTOR)
    (place / DROP).chmod(0o3733)
    place.parent.chmod(0o1777)

    def learns() -> None:
        membership.join(place)
        shared_progress.save_check("amp", FAILED, [Part("correct", "failed", WORDS)])
        membership.raise_hand("why?")

    uids = range(41010, 41030)
    for uid in uids:
        monkeypatch.setenv("COURSE_RUNS", str(place.parent / f"runs-{uid}"))
        assert as_user(uid, learns) == ""

    def shows() -> None:
        learners, problems = drop_box.read(place)
        assert [learner.name for learner in learners] == [f"user {uid}" for uid in uids]
        assert not problems and all(learner.hand.check == "amp" for learner in learners)
        (row,) = report.causes(learners)
        assert (row.failed, row.learners) == (20, 20)
        count, left = drop_box.remove(place)
        assert count == 20 and left == []

    assert as_user(INSTRUCTOR, shows) == ""
    assert not (place / DROP).exists()


def test_any_message_of_a_learner_is_read(place: Path) -> None:
    for seed in range(20):
        learner = drop_box.parse(json.dumps(some_message(seed)), "x")
        assert report.stuck_on(learner)


def test_the_end_of_a_class_asks_and_deletes_all(place: Path) -> None:
    put(place, os.getuid(), message())
    (place / DROP / "a-link").symlink_to("/etc/passwd")
    (place / DROP / "a-folder").mkdir()
    (place / DROP / "full" / "x").mkdir(parents=True)
    with pytest.raises(ValueError, match="Delete the files of all learners.*add --yes"):
        course("class", "end", str(place))
    assert len([*(place / DROP).iterdir()]) == 4
    shown = course("class", "end", str(place), "--yes")
    assert "3 files deleted; the class has ended" in shown and Path("/etc/passwd").exists()
    assert not (place / DROP).exists()  # although a learner keeps a folder full
    (full,) = place.glob(".ended-*/*")
    assert full.name == "full" and f"{full.parent.name}/full of " in shown
    shutil.rmtree(full)
    assert "0 files deleted" in course("class", "end", str(place), "--yes")
    assert [*place.iterdir()] == []
    with pytest.raises(ValueError, match="has no drop box"):
        course("class", "end", str(place), "--yes")


def test_what_is_sent_is_what_is_read(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every field that learners send is one that the instructor's side knows."""
    membership.join(place)
    shared_progress.save_check("amp", FAILED, [Part("correct", "failed", WORDS)])
    shared_progress.save_answer("gpu", 1, "a", True)
    with shared_progress.changing() as values:
        values["predictions"]["amp on slurm"] = {"value": 2, "measured": 3.5}
    membership.raise_hand("why?")
    (learner,), problems = drop_box.read(place)
    assert not problems and learner.hand.text == "why?" and learner.quizzes == {"gpu": (1, 1)}
    assert learner.checks["amp"].cause == f"correct: {WORDS}" and learner.checks["amp"].since
    assert learner.predictions == {"amp on slurm": drop_box.Prediction(2.0, 3.5)}
