"""Lists of images: made once, shared, made again after a change, and small in memory."""

import os
import pickle
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from course.data import listing
from course.data.folders import DataError
from course.data.listing import Listing, list_folder, table

LIST = """
import sys
from pathlib import Path
from course.data import listing
listing.STORED_FROM = 1
print(len(listing.list_folder(Path(sys.argv[1]), "train")))
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a set that is large enough to be stored, with two classes, changed long ago."""
    monkeypatch.setenv("COURSE_DATA", str(tmp_path / "cache" / "default"))
    monkeypatch.setattr(listing, "STORED_FROM", 1)
    for name in ("cat/1.jpg", "cat/young/2.jpg", "dog/3.JPEG"):
        path = tmp_path / "set" / "train" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    settle(tmp_path / "set" / "train")
    return tmp_path / "set"


def settle(folder: Path) -> None:
    """Move the times of all folders to the past, each to a different one."""
    for path in (folder, *folder.rglob("*")):
        os.utime(path, ns=(0, path.stat().st_mtime_ns - 10**12))


def items(root: Path) -> list[tuple[str, int]]:
    return [(Path(path).name, label) for path, label in list_folder(root, "train")]


def no_walk(*_: object) -> None:
    raise AssertionError("it was listed again")


FIRST = [("1.jpg", 0), ("2.jpg", 0), ("3.JPEG", 1)]


def test_a_folder_is_listed_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert items(root) == FIRST
    monkeypatch.setattr(listing, "_walk", no_walk)
    assert items(root) == FIRST
    files = list_folder(root, "train")
    assert files.classes == ["cat", "dog"] and files.read(1) == b"cat/young/2.jpg"
    assert pickle.loads(pickle.dumps(files))[2] == files[2]


@pytest.mark.parametrize("name", ["cat/4.jpg", "cat/young/4.jpg", "cat/new/4.jpg", "cow/4.jpg"])
def test_it_is_listed_again_after_a_change(root: Path, name: str) -> None:
    assert items(root) == FIRST
    path = root / "train" / name
    path.parent.mkdir(exist_ok=True)
    path.touch()
    number = 1 if name.startswith("cow") else 0
    assert ("4.jpg", number) in items(root) and len(items(root)) == 4
    settle(root / "train")
    path.unlink()
    if name.startswith("cow"):
        path.parent.rmdir()
    assert items(root) == FIRST


def test_a_change_within_the_clocks_resolution_is_noticed(root: Path) -> None:
    (root / "train" / "cat" / "4.jpg").touch()
    assert len(items(root)) == 4
    time = (root / "train" / "cat").stat().st_mtime_ns
    (root / "train" / "cat" / "5.jpg").touch()
    os.utime(root / "train" / "cat", ns=(time, time))  # as on a disk that counts seconds
    assert len(items(root)) == 5


def test_a_damaged_list_is_made_again(root: Path) -> None:
    assert items(root) == FIRST
    (path,) = root.parent.glob("cache/*-listing/train.npy")
    for content in (b"", path.read_bytes()[:-9], b"{}" + bytes(50)):
        path.write_bytes(content)
        assert items(root) == FIRST


def test_processes_that_use_a_list_notice_that_it_has_changed(root: Path) -> None:
    state = pickle.dumps(list_folder(root, "train"))
    (root / "train" / "cat" / "4.jpg").touch()
    list_folder(root, "train")
    with pytest.raises(DataError, match="set changed while it was in use: start the run again"):
        pickle.loads(state)


def test_a_list_that_cannot_be_stored_is_used_nevertheless(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (root.parent / "file").touch()
    monkeypatch.setenv("COURSE_DATA", str(root.parent / "file" / "default"))
    assert items(root) == FIRST
    assert f"the list of {root / 'train'} cannot be stored" in capsys.readouterr().err


@pytest.mark.slow
def test_one_of_several_ranks_lists_a_folder(root: Path) -> None:
    command = [sys.executable, "-c", LIST, str(root)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    ranks = [subprocess.Popen(command, **pipes) for _ in range(3)]
    outputs = [rank.communicate(timeout=60) for rank in ranks]
    assert [output for output, _ in outputs] == ["3\n"] * 3
    assert "".join(errors for _, errors in outputs).count(f"listing {root / 'train'}, once") == 1


def test_a_stored_list_takes_no_memory_of_a_process(tmp_path: Path) -> None:
    names, images = [b"n01440764_%05d.JPEG" % number for number in range(1280)], 1280 * 160
    rows = np.concatenate([table(label, label, names) for label in range(images // 1280)])
    containers = [f"train/{label:04d}" for label in range(len(rows) // 1280)]
    Listing(tmp_path, containers, containers, rows).save(tmp_path / "list.npy")
    assert (tmp_path / "list.npy").stat().st_size < 45 * images  # 60 MB for 1.28 million
    tracemalloc.start()
    try:
        loaded, _ = Listing.load(tmp_path / "list.npy", tmp_path)
        assert len(pickle.dumps(loaded)) < 20_000
        assert all(loaded[at][1] == at // 1280 for at in range(0, images, 100))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_folders_without_classes_or_images_are_named(root: Path) -> None:
    (root / "val").mkdir()
    with pytest.raises(DataError, match="set/val has no class folders: .*course data --from"):
        list_folder(root, "val")
    (root / "train" / "empty").mkdir()
    with pytest.raises(DataError, match="train is incomplete: .* classes empty"):
        list_folder(root, "train")
    assert not (root.parent / "cache").exists() or not [*root.parent.glob("cache/*/*.npy")]
    with pytest.raises(DataError, match="no folder .*nowhere/train"):
        list_folder(root / "nowhere", "train")
