"""The default set: the same bytes everywhere, whole or not there, and nobody's files lost."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import PIL
import pytest
from PIL import Image

from course.data import default_set
from course.data.default_set import PHOTOGRAPHS, SIZES, DataError, Recipe, ensure, is_whole

TINY = Recipe(train_per_class=2, val_per_class=1)
LEAST = Recipe(train_per_class=1, val_per_class=0)  # where it matters only that one is made
GOLDEN_PILLOW = "13.0.0"
GOLDEN_DIGEST = "537665009def9fb4060def3d8041ffc7a07949dae814b180fac5043482121bf6"

# A maker may have inherited an ignored SIGINT, as jobs in a shell's background do.
MAKER = """
import signal, sys
from pathlib import Path
from course.data.default_set import Recipe, ensure
signal.signal(signal.SIGINT, signal.default_int_handler)
ensure(Path(sys.argv[1]), Recipe(int(sys.argv[2]), int(sys.argv[3])))
"""


def start_maker(root: Path, recipe: Recipe = TINY) -> subprocess.Popen:
    counts = [str(recipe.train_per_class), str(recipe.val_per_class)]
    command = [sys.executable, "-c", MAKER, str(root), *counts]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def digest(root: Path) -> str:
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        total.update(f"{path.relative_to(root)}\n".encode() + path.read_bytes())
    return total.hexdigest()


def partial_of(root: Path) -> Path:
    return root.with_name(f"{root.name}.partial")


@pytest.fixture
def own_copy(tiny_set: Path, tmp_path: Path) -> Path:
    """A tiny set that a test may damage."""
    return shutil.copytree(tiny_set, tmp_path / "copy")


@pytest.fixture
def maker_at_work(tmp_path: Path) -> Iterator[tuple[subprocess.Popen, Path]]:
    """A process in the middle of the full set, and the root that it makes."""
    root = tmp_path / "set"
    maker = start_maker(root, Recipe())
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("*/*/*/*.jpg"))) < 5:
        assert maker.poll() is None and time.monotonic() < deadline, "the maker made nothing"
        time.sleep(0.02)
    yield maker, root
    maker.kill()
    maker.communicate()


@pytest.mark.slow
def test_two_processes_at_once_make_one_whole_set_of_the_same_bytes(
    tiny_set: Path, tmp_path: Path
) -> None:
    root = tmp_path / "shared"
    makers = [start_maker(root), start_maker(root)]
    said = [maker.communicate(timeout=60)[1] for maker in makers]
    assert [maker.returncode for maker in makers] == [0, 0], said
    assert sum("making the default data set" in text for text in said) == 1
    assert is_whole(root, TINY)
    assert digest(root) == digest(tiny_set)  # which a third process made


@pytest.mark.skipif(
    PIL.__version__ != GOLDEN_PILLOW,
    reason=f"the digest was taken with Pillow {GOLDEN_PILLOW}; this is {PIL.__version__}",
)
def test_bytes_are_those_of_every_machine(tiny_set: Path) -> None:
    assert digest(tiny_set) == GOLDEN_DIGEST


def test_layout_is_that_of_imagenet(tiny_set: Path) -> None:
    for split, count in (("train", TINY.train_per_class), ("val", TINY.val_per_class)):
        files = {
            folder.name: len(list(folder.glob("*.jpg"))) for folder in (tiny_set / split).iterdir()
        }
        assert files == dict.fromkeys(PHOTOGRAPHS, count)


def test_no_two_files_are_equal(tiny_set: Path) -> None:
    contents = [path.read_bytes() for path in tiny_set.glob("*/*/*.jpg")]
    assert len(set(contents)) == len(contents) == len(TINY.jobs())


def test_another_seed_makes_other_files(tiny_set: Path, tmp_path: Path) -> None:
    root = ensure(tmp_path / "other", Recipe(train_per_class=1, val_per_class=0, seed=1))
    files = list(root.glob("*/*/*.jpg"))
    assert len(files) == len(PHOTOGRAPHS)
    for path in files:
        assert path.read_bytes() != (tiny_set / path.relative_to(root)).read_bytes()


def test_files_are_as_large_as_those_of_imagenet(tiny_set: Path) -> None:
    paths = list(tiny_set.glob("*/*/*.jpg"))
    assert 80e3 < median(path.stat().st_size for path in paths) < 150e3
    sizes = []
    for path in paths:
        with Image.open(path) as image:
            assert (image.format, image.mode) == ("JPEG", "RGB")
            sizes.append(image.size)
    assert set(sizes) <= {size for size, _ in SIZES}
    assert median(max(size) for size in sizes) == 500
    assert median(min(size) for size in sizes) == 375


def test_shares_of_sizes_sum_to_one() -> None:
    assert sum(share for _, share in SIZES) == pytest.approx(1)


def test_killed_maker_leaves_nothing_taken_for_whole(maker_at_work) -> None:
    maker, root = maker_at_work
    maker.kill()
    maker.wait()
    assert partial_of(root).exists()  # else it was not killed in the middle
    assert not root.exists() and not is_whole(root)
    ensure(root, LEAST)
    assert is_whole(root, LEAST)
    assert not partial_of(root).exists()


def test_interrupted_maker_tidies_up(maker_at_work) -> None:
    maker, root = maker_at_work
    maker.send_signal(signal.SIGINT)
    _, said = maker.communicate(timeout=60)
    assert "KeyboardInterrupt" in said
    assert not partial_of(root).exists() and not root.exists()


def test_missing_file_is_noticed_and_made_again(own_copy: Path, tiny_set: Path) -> None:
    assert is_whole(own_copy, TINY)
    next(own_copy.glob("train/cat/*.jpg")).unlink()
    assert not is_whole(own_copy, TINY)
    ensure(own_copy, TINY)
    assert digest(own_copy) == digest(tiny_set)


def test_whole_set_is_not_touched(own_copy: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in own_copy.rglob("*")}
    assert ensure(own_copy, TINY) == own_copy
    assert {path: path.stat().st_mtime_ns for path in own_copy.rglob("*")} == before


def test_set_of_another_recipe_is_made_anew(own_copy: Path) -> None:
    smaller = Recipe(train_per_class=1, val_per_class=1)
    assert not is_whole(own_copy, smaller)
    ensure(own_copy, smaller)
    assert is_whole(own_copy, smaller) and not is_whole(own_copy, TINY)


@pytest.mark.parametrize("manifest", ("", "{", "[]", "7", '{"recipe": null}'))
def test_damaged_manifest_is_not_whole(own_copy: Path, manifest: str) -> None:
    (own_copy / default_set.MANIFEST).write_text(manifest)
    assert not is_whole(own_copy, TINY)


@pytest.mark.parametrize(
    "name, text",
    [
        ("thesis.txt", "three years of work"),
        ("manifest.json", '{"name": "the manifest of something else"}'),
    ],
)
def test_foreign_folder_is_refused_and_left_alone(tmp_path: Path, name: str, text: str) -> None:
    root = tmp_path / "mine"
    root.mkdir()
    (root / name).write_text(text)
    (root / "photo.jpg").touch()
    with pytest.raises(DataError, match="left alone: set COURSE_DATA") as caught:
        ensure(root, TINY)
    assert str(root) in str(caught.value)
    assert (root / name).read_text() == text and (root / "photo.jpg").exists()
    assert {path.name for path in root.iterdir()} == {name, "photo.jpg"}


def test_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert is_whole(ensure(tmp_path / "empty", LEAST), LEAST)


def test_linked_empty_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "scratch")
    assert is_whole(ensure(tmp_path / "link", LEAST), LEAST)


def test_unwritable_place_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write everywhere, but not below a regular file.
    (tmp_path / "file").touch()
    root = tmp_path / "file" / "set"
    monkeypatch.setenv("COURSE_DATA", str(root))
    with pytest.raises(DataError, match="set COURSE_DATA to a folder") as caught:
        ensure()
    assert str(root) in str(caught.value)


def test_variable_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COURSE_DATA", "~/images")
    assert default_set.default_root() == Path(os.path.expanduser("~/images"))


def test_a_file_cut_to_nothing_is_noticed_and_the_set_made_again(tmp_path: Path) -> None:
    root = default_set.ensure(tmp_path / "set", LEAST)
    victim = next(root.glob("train/*/*.jpg"))
    victim.write_bytes(b"")
    assert not default_set.is_whole(root, LEAST)
    default_set.ensure(root, LEAST)
    assert victim.stat().st_size > 0
