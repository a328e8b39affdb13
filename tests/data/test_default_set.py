"""The default set: the same bytes everywhere, complete or absent, and no other files lost."""

import hashlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import PIL
import pytest

from course.data import default_set
from course.data.default_set import Recipe, ensure, ensure_complete, is_complete
from course.data.folders import DataError

TINY = Recipe(train_per_class=2, val_per_class=1)
SMALLEST = Recipe(train_per_class=1, val_per_class=0)
PILLOW = "13.0.0"
DIGEST = "537665009def9fb4060def3d8041ffc7a07949dae814b180fac5043482121bf6"  # with this Pillow

# A background job of a shell inherits an ignored SIGINT.
SCRIPT = """
import signal, sys
from pathlib import Path
from course.data.default_set import Recipe, ensure
signal.signal(signal.SIGINT, signal.default_int_handler)
ensure(Path(sys.argv[1]), Recipe(int(sys.argv[2]), int(sys.argv[3])))
"""


def start_process(root: Path, recipe: Recipe = TINY) -> subprocess.Popen:
    counts = [str(recipe.train_per_class), str(recipe.val_per_class)]
    command = [sys.executable, "-c", SCRIPT, str(root), *counts]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def digest(root: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        total.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return total.hexdigest()


@pytest.fixture
def copy(tiny_set: Path, tmp_path: Path) -> Path:
    """Return a copy of the tiny set, which a test may damage."""
    return shutil.copytree(tiny_set, tmp_path / "copy")


@pytest.fixture
def busy_process(tmp_path: Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """Start a process that creates the full set; yield the process and the set's folder."""
    root = tmp_path / "set"
    process = start_process(root, Recipe())
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*/*/*/*.jpg"))) < 5:
        assert process.poll() is None and time.monotonic() < deadline, "no file was created"
        time.sleep(0.02)
    yield process, root
    process.kill()
    process.communicate()


@pytest.mark.slow
def test_two_processes_create_one_set_with_the_same_bytes(tiny_set: Path, tmp_path: Path) -> None:
    root = tmp_path / "shared"
    processes = [start_process(root), start_process(root)]
    outputs = [process.communicate(timeout=60)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], outputs
    assert sum("making the default data set" in output for output in outputs) == 1
    assert is_complete(root, TINY) and digest(root) == digest(tiny_set)


@pytest.mark.skipif(PIL.__version__ != PILLOW, reason=f"the digest is of Pillow {PILLOW}")
def test_bytes_are_the_same_on_every_machine(tiny_set: Path) -> None:
    assert digest(tiny_set) == DIGEST


def test_a_killed_process_leaves_no_set(busy_process) -> None:
    process, root = busy_process
    partial = root.with_name("set.partial")
    process.kill()
    process.wait()
    assert partial.exists() and not root.exists() and not is_complete(root)
    assert is_complete(ensure(root, SMALLEST), SMALLEST)
    assert not partial.exists()


def test_an_interrupted_process_removes_its_files(busy_process) -> None:
    process, root = busy_process
    process.send_signal(signal.SIGINT)
    assert "KeyboardInterrupt" in process.communicate(timeout=60)[1]
    assert not root.with_name("set.partial").exists() and not root.exists()


def test_what_others_move_there_meanwhile_is_not_removed(tmp_path: Path) -> None:
    """On a scratch disk, a classmate's folder can have files of this user in it."""
    results = tmp_path / "shared" / "results"
    results.mkdir(parents=True)

    def fill(_: Path) -> None:
        (tmp_path / "shared").rename(tmp_path / "set")

    with pytest.raises(DataError, match="cannot make the set in"):
        ensure_complete(tmp_path / "set", is_complete=lambda _: False, fill=fill, what="set")
    assert (tmp_path / "set" / "results").exists()
    assert not (tmp_path / "set.partial").exists()


def test_a_damaged_set_is_created_again_and_a_complete_one_kept(copy: Path, tiny_set: Path) -> None:
    times = {path: path.stat().st_mtime_ns for path in copy.rglob("*")}
    assert ensure(copy, TINY) == copy
    assert {path: path.stat().st_mtime_ns for path in copy.rglob("*")} == times
    for damage in (lambda path: path.unlink(), lambda path: path.write_bytes(b"")):
        damage(next(copy.glob("train/cat/*.jpg")))
        assert not is_complete(copy, TINY)
        assert digest(ensure(copy, TINY)) == digest(tiny_set)
    assert not is_complete(copy, SMALLEST)
    assert is_complete(ensure(copy, SMALLEST), SMALLEST) and not is_complete(copy, TINY)


@pytest.mark.parametrize(
    "name, text", [("thesis.txt", "three years of work"), ("manifest.json", '{"name": "other"}')]
)
def test_a_folder_with_other_files_is_refused(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(
        DataError, match=f"{tmp_path} .* stays unchanged: move it, or set COURSE_DATA"
    ):
        ensure(tmp_path, TINY)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == text


def test_an_unwritable_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()  # root may write everywhere, but not below a file
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "file" / "set"))
    with pytest.raises(DataError, match=f"{tmp_path}/file/set.*set COURSE_DATA to a folder"):
        ensure()
    monkeypatch.setenv("COURSE_DATA", "~/images")
    assert default_set.default_root() == Path("~/images").expanduser()
