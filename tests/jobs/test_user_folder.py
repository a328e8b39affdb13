"""The user's own folders on a shared machine, where a classmate creates them first."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from job_helpers import CONFIG, over
from race_helpers import as_user
from torch._inductor import config
from torch._inductor.runtime import cache_dir_utils

from course.jobs.launch import launch
from course.runs import user_folder
from course.training.recorder import recording

LEARNER, CLASSMATE = 41002, 41003
pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="only root may be somebody else")


@pytest.fixture
def temporary(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Create a temporary directory in which everyone can write, like a machine's own."""
    place = Path(tempfile.mkdtemp(prefix="shared-", dir="/tmp"))
    place.chmod(0o1777)
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    monkeypatch.setenv("LOGNAME", "learner")
    monkeypatch.delenv(user_folder.CACHE, raising=False)
    monkeypatch.delenv(user_folder.HEADERS, raising=False)
    yield place
    shutil.rmtree(place)


def cache_of_learner() -> Path:
    """Return the folder of the code that a learner's script compiles."""
    with recording():
        return Path(cache_dir_utils.cache_dir())


def look(folder: Path) -> None:
    """Check that the cache is in this folder, and that no one else can write to it."""
    cache = cache_of_learner()
    assert cache == folder
    assert (cache.stat().st_uid, cache.stat().st_mode & 0o777) == (LEARNER, 0o700)
    default = Path(cache_dir_utils.default_cache_dir())  # headers are always here
    is_unread = (
        os.environ.get(user_folder.HEADERS) == "0" and not config.cpp_cache_precompile_headers
    )
    assert default.stat().st_uid == LEARNER or is_unread


def squat(*names: Path) -> None:
    """Create the folders first, writable for everyone, as a classmate might."""
    for name in names:
        name.mkdir()
        name.chmod(0o777)


def test_the_compile_cache_is_the_users_alone(temporary: Path) -> None:
    folder = temporary / "torchinductor_learner"
    assert as_user(LEARNER, lambda: look(folder)) == ""


def test_a_classmate_who_comes_first_gives_nobody_a_cache(temporary: Path) -> None:
    folder = temporary / f"make-training-fast-{LEARNER}"
    taken = temporary / "torchinductor_learner"
    assert as_user(CLASSMATE, lambda: squat(taken)) == ""
    assert as_user(LEARNER, lambda: look(folder / "compile")) == ""
    shutil.rmtree(folder)
    assert as_user(CLASSMATE, lambda: squat(folder, folder / "compile")) == ""

    def others_are_used() -> None:
        cache = cache_of_learner()
        assert cache.parent == user_folder.user_folder() and cache.parent != folder
        look(cache)

    assert as_user(LEARNER, others_are_used) == ""


def test_a_script_of_ones_own_has_such_a_cache_too(
    temporary: Path, tmp_path: Path, runs_root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(temporary))
    squat(taken := temporary / "torchinductor_learner")
    script = tmp_path / "mine.py"
    script.write_text(
        "from torch._inductor.runtime.cache_dir_utils import cache_dir\n"
        f"assert cache_dir() != {str(taken)!r}, cache_dir()"
    )
    run = over(launch(script, CONFIG, arguments=["--lr", "1"]))
    assert run.status == "ok", run.explain()


def squat_all(place: Path) -> None:
    """Create every name that begins like the folder's, as whatever a classmate can create."""
    name = f"make-training-fast-{LEARNER}"
    (place / name).symlink_to("/etc")
    squat(place / f"{name}-a")
    (place / f"{name}-b").write_text("")


def test_all_processes_of_a_user_find_the_same_folder_also_if_its_name_is_taken(
    temporary: Path,
) -> None:
    assert as_user(CLASSMATE, lambda: squat_all(temporary)) == ""
    folders = temporary / "found"
    folders.mkdir(mode=0o777)
    folders.chmod(0o777)
    for number in range(2):
        write = (folders / str(number)).write_text
        assert as_user(LEARNER, lambda write=write: write(str(user_folder.user_folder()))) == ""
    first, second = ((folders / name).read_text() for name in "01")
    assert first == second
    status = Path(first).stat()
    assert (status.st_uid, status.st_mode & 0o777) == (LEARNER, 0o700)


def test_many_names_that_begin_like_the_folders_cost_no_minutes(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A classmate can create a million of them in seconds, and the queue asks often."""
    assert as_user(CLASSMATE, lambda: squat_all(temporary)) == ""
    looks, scandir = [], os.scandir

    def look_all(place: Path) -> Iterator[os.DirEntry]:
        looks.append(place)
        return scandir(place)

    def ask_often() -> None:
        monkeypatch.setattr(os, "scandir", look_all)
        assert len({user_folder.user_folder() for _ in range(9)}) == 1
        assert len(looks) == 2  # before the folder is created, and after

    assert as_user(LEARNER, ask_often) == ""
