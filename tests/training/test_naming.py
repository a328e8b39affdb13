"""A file's name is noted where it came by a rename, and whether the disk had the file by then."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from os import fsync, replace
from pathlib import Path

import pytest

from course.training.evidence.renames import Naming


@contextmanager
def noted(folder: Path | None) -> Iterator[Naming]:
    naming = Naming(folder)
    naming.start()
    try:
        yield naming
    finally:
        naming.stop()


def written(folder: Path, *, flush: bool = True, sync: Callable[[int], None] | None = None) -> Path:
    """A draft whose bytes a buffer holds back until it is flushed."""
    draft = folder / ".draft"
    with draft.open("wb") as file:
        file.write(b"half" * 100)
        if flush:
            file.flush()
        if sync:
            sync(file.fileno())
    return draft


RENAMES = {
    "replace": lambda draft, final: draft.replace(final),
    "rename": lambda draft, final: draft.rename(final),
    "os": lambda draft, final: os.replace(src=str(draft), dst=os.fsencode(final)),
    "imported": lambda draft, final: replace(draft, final),
    "link": lambda draft, final: os.link(draft, final),
}


@pytest.mark.parametrize("rename", RENAMES.values(), ids=RENAMES)
def test_a_rename_is_seen_however_it_is_called(tmp_path: Path, rename: Callable) -> None:
    with noted(tmp_path) as naming:
        rename(written(tmp_path, sync=lambda fd: fsync(fd)), tmp_path / "final")
    assert naming.found == {"final": True}


def test_only_what_was_flushed_and_then_synced_is_on_the_disk(tmp_path: Path) -> None:
    with noted(tmp_path) as naming:
        written(tmp_path).replace(tmp_path / "never")
        written(tmp_path, flush=False, sync=os.fsync).replace(tmp_path / "in the buffer")
        late = written(tmp_path).rename(tmp_path / "too late")
        with late.open("rb") as file:
            os.fsync(file)
    assert naming.found == {"never": False, "in the buffer": False, "too late": False}


def test_a_whole_folder_may_be_renamed(tmp_path: Path) -> None:
    with noted(tmp_path) as naming:
        (tmp_path / ".drafts").mkdir()
        written(tmp_path / ".drafts", sync=os.fsync).rename(tmp_path / ".drafts/model.pt")
        (tmp_path / ".drafts").rename(tmp_path / "step-3")
    assert naming.found == {"model.pt": True}


def test_what_moves_nothing_or_is_elsewhere_is_no_rename(tmp_path: Path) -> None:
    inside = tmp_path / "inside"
    inside.mkdir()
    real = os.replace, os.fsync, fsync
    with noted(inside) as naming:
        assert (os.replace, os.fsync, fsync) != real
        draft = written(inside, sync=os.fsync)
        draft.replace(draft)
        draft.replace(tmp_path / "elsewhere")
    assert naming.found == {}
    assert (os.replace, os.fsync, fsync) == real
    with noted(None) as naming:
        written(inside).replace(inside / "final")
    assert naming.found == {}
