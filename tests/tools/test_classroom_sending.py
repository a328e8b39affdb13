"""What a learner sends to a class, and when; and that nothing private is in it."""

import json
import os
import re
import resource
import signal
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from classroom_helpers import make_class
from filelock import FileLock
from race_helpers import as_user
from typer.testing import CliRunner

from course import predict
from course.__main__ import app
from course.checks import causes, discovery, exercise_files, exercises, shared_progress, store
from course.checks.functions import check_written
from course.checks.predictions import settle
from course.checks.shared_progress import DROP, LIMIT_BYTES, save_answer, save_check
from course.checks.verdict import Part
from course.runs.errors import JobError
from course.runs.run import PROJECT
from tools.classroom import membership

ALICE, MALLORY, INSTRUCTOR = 41002, 41003, 41001
needs_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as other users")
PASSED = {"correct": "passed", "mechanism": "passed", "effect": "passed"}
WRONG = {"correct": "failed", "mechanism": "not measurable here", "effect": "not measurable here"}
SECRET = "Geheim"  # planted wherever a learner writes something


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a class folder; progress is stored in an empty runs folder."""
    monkeypatch.setenv("COURSE_RUNS", str(tmp_path / "runs"))
    return make_class(tmp_path / "class")


def course(*words: str) -> str:
    done = CliRunner().invoke(app, list(words))
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def fail(name: str, words: str = "update once per batch") -> None:
    save_check(name, WRONG, [Part("correct", "failed", words)])


def files(place: Path) -> list[Path]:
    return sorted((place / DROP).iterdir())


def sent(place: Path) -> dict:
    (path,) = files(place)
    return json.loads(path.read_text())


def test_nothing_is_sent_before_joining_or_after_leaving(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COURSE_CLASS", str(place))
    save_check("amp", PASSED)
    assert files(place) == []
    shown = course("class", "join", "--yes")
    example = json.loads(shown[shown.index("{") : shown.rindex("}") + 1])
    assert example["checks"] == sent(place)["checks"] and "Never sent: scripts" in shown
    (path,) = files(place)
    assert stat.S_IMODE(path.stat().st_mode) == 0o640
    fail("amp")
    assert sent(place)["checks"]["amp"]["state"] == "failed"
    course("class", "join", "--yes")  # again: the same file
    assert files(place) == [path]
    assert "is deleted" in course("class", "leave")
    save_check("device", PASSED)
    assert files(place) == [] and not shared_progress.joined()
    with pytest.raises(ValueError, match="joined a class"):
        course("class", "leave")


def test_each_change_is_sent(place: Path) -> None:
    membership.join(place)
    fail("amp", "the batch")
    since = sent(place)["checks"]["amp"]["failing_since"]
    fail("amp", "update once per batch")
    assert sent(place)["checks"]["amp"]["failing_since"] == since
    save_check("amp", PASSED)
    check = sent(place)["checks"]["amp"]
    assert "failing_since" not in check
    assert check["state"] == "passed" and check["tries"] == 3
    assert check["cause"] == "correct: update once per batch"  # the last failure's
    save_answer("gpu", 1, "a", True)
    save_answer("gpu", 2, "a", False)
    assert sent(place)["quizzes"] == {"gpu": {"answered": 2, "right": 1}}
    predict("sizes", "Large", f"because {SECRET}", choices=("large", "small"))
    predict("speedup", 2.5)
    settle("speedup", float("nan"))
    assert sent(place)["predictions"]["speedup"] == {"value": 2.5}
    settle("speedup", 3)
    predictions = sent(place)["predictions"]
    assert predictions == {"sizes": {"value": "large"}, "speedup": {"value": 2.5, "measured": 3.0}}


def test_states_of_todos_are_sent_without_the_open_ones(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def sent_with(text: str, state: str) -> dict[str, str]:
        rows = [{"todo": "amp", "state": state}, {"todo": "device", "state": "open"}]
        monkeypatch.setattr(exercises, "read", lambda path: text)
        monkeypatch.setattr(exercises, "states", lambda name: rows)
        save_check("amp", PASSED)
        return sent(place)["todos"]

    monkeypatch.setattr(exercises, "read", lambda path: "")
    membership.join(place)
    assert sent_with("one", "edited") == {"amp": "edited"}
    assert sent_with("one", "given") == {"amp": "edited"}  # the same text: from the cache
    assert sent_with("two", "given") == {"amp": "given"}
    assert sent_with("one", "open") == {}


def test_progress_of_before_is_read_and_counts_as_one_try(place: Path) -> None:
    old = {"schema": 1, "predictions": {}, "answers": {}}
    old["checks"] = {"amp": {**WRONG, "checked_at": "2026-11-01T10:00:00"}}
    store.path().parent.mkdir()
    store.path().write_text(json.dumps(old))
    assert shared_progress.message({})["checks"]["amp"]["tries"] == 1
    save_check("amp", WRONG)
    assert store.read()["checks"]["amp"]["tries"] == 1 + 1


class GeheimError(Exception):
    pass


def fails(*_: object) -> None:
    raise GeheimError(f"{SECRET} in /home/{SECRET}/{SECRET}.py")


def divides(*_: object) -> None:
    raise ZeroDivisionError(SECRET)


def Geheim_returns(*_: object) -> str:
    return SECRET


@pytest.mark.parametrize(
    ("function", "cause"),
    [
        (fails, "correct: it raised"),
        (divides, "correct: it raised ZeroDivisionError"),
        (Geheim_returns, "correct: "),
    ],
)
def test_no_secret_of_a_function_is_sent(
    place: Path, function: Callable[..., object], cause: str
) -> None:
    membership.join(place)
    predict(f"{SECRET} is a sentence", 1)
    predict("sizes", 2, f"because {SECRET}")
    check_written("rounding.carry", function)
    check_written(next(iter(discovery.functions())), function)
    save_check(SECRET, WRONG)
    save_answer(SECRET, 1, "a", True)
    text = files(place)[0].read_text()
    assert SECRET.lower() not in text.lower()
    assert sent(place)["checks"]["rounding.carry"]["cause"].startswith(cause)


MESSAGES = {
    f"with cfg.x=3, rank 1, step 2: number of updates per step of {SECRET} is 7, expected 1: "
    f"update once per batch": "number of updates per step … update once per batch",
    f"with the rung amp: NameError: name '{SECRET}' is not defined (exercises/{SECRET}.py, line 3)"
    "": "the rung … NameError",
    f"amp-1f2e: failed. {SECRET}Error: /home/{SECRET} (exercises/train.py, line 9)": "failed",
    f"amp-1f2e: failed. torch.OutOfMemoryError: CUDA out of memory, {SECRET}": "failed",
    "amp-1f2e: timeout. still running after its 0.6 minutes": "timeout",
    f"the script ended its process: SIGSEGV {SECRET}": "the script ended its process: SIGSEGV",
    f"{SECRET}": causes.UNKNOWN,
}


@pytest.mark.parametrize("message", MESSAGES)
def test_a_cause_has_only_the_courses_words(message: str) -> None:
    cause = causes.cause_of("amp", [Part("correct", "failed", message)])
    assert cause.startswith(f"correct: {MESSAGES[message]}") and SECRET not in cause
    assert "OutOfMemoryError" in cause or "OutOfMemory" not in message
    numbers = message.translate(str.maketrans("123479", "901580"))
    if "update" in message:  # equal mistakes have equal causes
        assert causes.cause_of("amp", [Part("correct", "failed", numbers)]) == cause


def test_a_long_course_fits(place: Path) -> None:
    """Causes of passed checks are left out first."""
    membership.join(place)
    with store.changing() as values:
        for lab in discovery.labs():
            values["answers"][lab.name] = {"1": {"choice": "a", "right": True}}
            for name in lab.all_checks:
                entry = {"checked_at": store.now(), "tries": 9999, "cause": "x" * 120}
                values["checks"][name] = {**PASSED, **entry}
        for number in range(80):
            entry = {"value": 1.23456789, "measured": 2.3456789, "rung": "", "note": "x" * 500}
            values["predictions"][f"a_longer_name_of_a_prediction_{number}"] = entry
    fail("amp")
    (path,) = files(place)
    assert path.stat().st_size <= LIMIT_BYTES
    content = sent(place)
    assert content["checks"]["amp"]["cause"] and len(content["predictions"]) == 80


def remove(place: Path) -> None:
    place.rename(place.with_name("gone"))


def replace_by_file(place: Path) -> None:
    (place / DROP).rename(place / "moved")
    (place / DROP).write_text("")


WRONG_BOXES = {
    "no drop box": remove,
    "is not a folder": replace_by_file,
    "can be listed by anyone": lambda place: (place / DROP).chmod(0o3737),
    "no sticky bit": lambda place: (place / DROP).chmod(0o2733),
    "its group": lambda place: (place / DROP).chmod(0o1733),
    "anyone can replace it": lambda place: place.chmod(0o777),
}


@pytest.mark.parametrize("reason", WRONG_BOXES)
def test_a_box_that_is_unsafe_or_gone_costs_a_line_and_no_check(
    place: Path, reason: str, capsys: pytest.CaptureFixture
) -> None:
    membership.join(place)
    WRONG_BOXES[reason](place)
    save_check("amp", PASSED)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"your progress was not sent to {place}: ") and reason in line
    assert store.read()["checks"]["amp"]["correct"] == "passed"
    if reason != "no drop box":
        with pytest.raises(ValueError, match=reason):
            course("class", "join", str(place), "--yes")


def test_a_full_disk_costs_a_line_and_keeps_the_old_file(
    place: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    membership.join(place)
    save_check("device", PASSED)
    before = sent(place)
    limits, handler = (
        resource.getrlimit(resource.RLIMIT_FSIZE),
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN),
    )
    encoded = shared_progress._encoded

    def on_a_full_disk(values: dict) -> bytes:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        return encoded(values)

    monkeypatch.setattr(shared_progress, "_encoded", on_a_full_disk)
    try:
        save_check("amp", PASSED)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert "File too large" in capsys.readouterr().err
    assert sent(place) == before and "amp" in store.read()["checks"]


def test_an_interrupt_leaves_the_old_file(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    membership.join(place)
    before = sent(place)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        save_check("amp", PASSED)
    assert sent(place) == before  # and no draft
    monkeypatch.undo()


def test_a_killed_process_leaves_nothing_in_the_way(place: Path) -> None:
    path = membership.join(place)
    path.with_name(f".{path.name}").write_text("half")
    save_check("amp", PASSED)
    assert sent(place)["checks"]["amp"]["state"] == "passed"


def test_a_hand_is_raised_with_the_newest_failure_and_lowered(place: Path) -> None:
    with pytest.raises(ValueError, match="course class join"):
        course("help", "why?")
    membership.join(place)
    for name in ("device", "amp", "compile"):
        save_check(name, WRONG if name != "compile" else PASSED)
        with store.changing() as values:  # a second is too short to tell them apart
            values["checks"][name]["checked_at"] = f"2026-11-30T10:00:0{len(name)}"
    course("help", "why \x1b[31m\nis it NaN?")
    hand = sent(place)["hand"]
    assert (hand["text"], hand["check"]) == ("why \ufffd[31m is it NaN?", "device")
    save_check("amp", PASSED)
    assert sent(place)["hand"] == hand
    with pytest.raises(ValueError, match="shorten it to 300"):
        course("help", "x" * 301)
    assert sent(place)["hand"] == hand
    course("help", "--done")
    assert sent(place)["hand"] is None
    with pytest.raises(ValueError, match="--done"):
        course("help")


def test_after_the_end_of_a_class_nothing_is_sent(
    place: Path, capsys: pytest.CaptureFixture
) -> None:
    membership.join(place)
    course("class", "end", str(place), "--yes")
    save_check("amp", PASSED)
    assert "has ended: nothing is sent any more" in capsys.readouterr().out
    save_check("amp", PASSED)
    assert capsys.readouterr() == ("", "") and not shared_progress.joined()


def test_a_check_that_ends_while_its_learner_leaves_sends_nothing(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    membership.join(place)
    alone = shared_progress.alone

    def leave_first() -> FileLock:
        monkeypatch.setattr(shared_progress, "alone", alone)
        membership.leave()
        return alone()

    monkeypatch.setattr(shared_progress, "alone", leave_first)
    save_check("amp", PASSED)
    assert files(place) == [] and capsys.readouterr() == ("", "")


def test_a_second_class_needs_leaving_the_first(place: Path, tmp_path: Path) -> None:
    membership.join(place)
    with pytest.raises(ValueError, match="leave it first"):
        membership.join(make_class(tmp_path / "other"))


@pytest.mark.parametrize(
    "state", ['{"folder": 3, "file": "a"}', "[]", "{", '{"folder": "/", "file": "../x"}']
)
def test_a_damaged_state_counts_as_not_joined(place: Path, state: str) -> None:
    (place.parent / "runs").mkdir()
    (place.parent / "runs" / "class.json").write_text(state)
    save_check("amp", PASSED)
    assert files(place) == []


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a class of another user: its folder is not in one of root's."""
    states = shared_progress._todo_states()  # others may not enter a clone in someone's home
    monkeypatch.setattr(shared_progress, "_todo_states", lambda: states)
    shared_progress.message({})
    umask = os.umask(0o022)
    with tempfile.TemporaryDirectory(prefix="class-", dir="/tmp") as name:
        Path(name).chmod(0o1777)
        place = make_class(Path(name) / "class")
        for path in (place, place / DROP):
            os.chown(path, INSTRUCTOR, INSTRUCTOR)
        (place / DROP).chmod(0o3733)
        yield place
    os.umask(umask)


def joins(place: Path, uid: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_RUNS", str(place.parent / f"runs-{uid}"))
    assert as_user(uid, lambda: membership.join(place)) == ""


@needs_root
def test_learners_can_neither_read_nor_change_the_files_of_others(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.umask(0o077)
    joins(shared, ALICE, monkeypatch)
    (path,) = files(shared)
    assert path.stat().st_gid == INSTRUCTOR and stat.S_IMODE(path.stat().st_mode) == 0o640
    fake = shared.parent / "fake"
    attempts = {
        "list": lambda: os.listdir(shared / DROP),
        "read": path.read_text,
        "write": lambda: path.write_text("x"),
        "delete": path.unlink,
        "rename": lambda: path.rename(path.with_name("x")),
        "replace": lambda: (fake.write_text("x"), os.replace(fake, path)),
        "link": lambda: os.link(path, shared / DROP / "link.json"),
        "open the box": lambda: (shared / DROP).chmod(0o777),
        "move the box": lambda: (shared / DROP).rename(shared / "moved"),
    }
    for what, attempt in attempts.items():
        assert "PermissionError" in as_user(MALLORY, attempt), what
    assert as_user(INSTRUCTOR, lambda: json.loads(path.read_text())["schema"]) == ""


@needs_root
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda place: os.chown(place / DROP, MALLORY, INSTRUCTOR), "belongs to"),
        (lambda place: os.chown(place / DROP, INSTRUCTOR, ALICE), "a group with learners"),
        (lambda place: (place / DROP).chmod(0o3711), "is not writable for you"),
    ],
)
def test_a_box_of_a_classmate_is_refused(
    shared: Path, change: Callable, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    change(shared)
    if "group" in reason:
        (shared / DROP).chmod(0o3733)
    monkeypatch.setenv("COURSE_RUNS", str(shared.parent / "runs"))
    assert reason in as_user(ALICE, lambda: membership.join(shared))
    assert files(shared) == []


@needs_root
def test_classmates_cannot_hold_the_locks_for_which_checks_wait(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may read a file may lock it."""
    joins(shared, ALICE, monkeypatch)
    assert as_user(ALICE, lambda: save_check("amp", WRONG)) == ""
    locks = [*(shared.parent / f"runs-{ALICE}").glob(".*.lock")]
    assert {path.name for path in locks} == {".progress.lock", ".class.lock"}
    for path in locks:
        assert "PermissionError" in as_user(MALLORY, path.read_text)


def test_only_their_owner_can_hold_locks() -> None:
    folders = ("course", "labs", "race", "tools")
    for path in (path for name in folders for path in (PROJECT / name).rglob("*.py")):
        calls = re.findall(r"FileLock\(.+", path.read_text())
        assert all("mode=0o600" in call for call in calls), path


def test_progress_is_private_in_a_home_that_is_open(place: Path) -> None:
    membership.join(place)
    fail("amp")
    runs = place.parent / "runs"
    (runs / "progress.json").write_text("damaged")
    fail("amp")  # and a copy of the damaged one is stored
    names = ["class.json", "progress.json", ".todo-states.json"]
    for path in (*map(runs.joinpath, names), *runs.glob("progress.unreadable-*")):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path


@needs_root
def test_nothing_is_sent_if_a_classmate_could_have_joined(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    membership.join(place)
    before = sent(place)
    monkeypatch.setenv("COURSE_TRUST", "")
    os.chown(place.parent / "runs", MALLORY, -1)
    with pytest.raises(JobError, match="can change it"):  # nor is their progress.json read
        fail("amp")
    with pytest.raises(JobError, match="can change it"):
        store.read()
    assert sent(place) == before


@needs_root
def test_a_folder_that_a_classmate_creates_in_the_place_of_the_class_gets_nothing(
    shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails() -> None:
        save_check("amp", WRONG)

    joins(shared, ALICE, monkeypatch)
    shared.rename(shared.with_name("gone"))  # as at the end of a course
    make_class(shared)
    for path in (shared, shared / DROP):
        os.chown(path, MALLORY, MALLORY)
    (shared / DROP).chmod(0o3733)
    as_user(ALICE, fails)
    assert files(shared) == []
    assert f"belongs to user {MALLORY} now" in as_user(
        ALICE, lambda: shared_progress.write_file(shared_progress.joined())
    )


def test_exercises_that_are_filled_are_sent_at_once(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    membership.join(place)
    monkeypatch.setattr(exercise_files, "restore", list)
    monkeypatch.setattr(exercise_files, "catch_up", lambda name: {})
    monkeypatch.setattr(shared_progress, "_todo_states", lambda: {"amp": "given"})
    course("exercises", "--upto", "amp")
    assert sent(place)["todos"] == {"amp": "given"}
