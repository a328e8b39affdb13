"""Observers of files: names passed to torch.save, renames, and whether files were on disk."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

NAMING, SYNCING = ("rename", "replace", "link"), ("fsync", "fdatasync")


class Naming:
    """Notes what is renamed into a folder from `start` to `stop`.

    Attributes:
        found: of each name that a file got so, whether all of it had been handed to the disk.
    """

    def __init__(self, folder: Path | None) -> None:
        self.found: dict[str, bool] = {}
        self._folder = folder
        self._on_disk: set[tuple[int, ...]] = set()
        self._replaced: list[tuple[dict[str, Any], str, Any]] = []

    def start(self) -> None:
        """Note from here on: calls through `os`, and through names that the script imported."""
        if self._folder is None:
            return
        for names, noted in ((NAMING, self._renaming), (SYNCING, self._syncing)):
            for name in names:
                if real := getattr(os, name, None):  # not every system has all
                    self._replace(real, noted(real))

    def stop(self) -> None:
        """Note no more."""
        while self._replaced:
            place, name, real = self._replaced.pop()
            place[name] = real

    def _replace(self, real: Callable[..., Any], noted: Callable[..., Any]) -> None:
        for place in (vars(os), *_globals_of_callers()):
            for name in [name for name, value in place.items() if value is real]:
                self._replaced.append((place, name, real))
                place[name] = noted

    def _renaming(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def noted(src: Any, dst: Any, **options: Any) -> None:
            draft, final = (Path(os.path.realpath(os.fsdecode(path))) for path in (src, dst))
            real(src, dst, **options)
            if draft != final and final.is_relative_to(self._folder.resolve()):
                for file in _files(final):
                    self.found[file.name] = _content(file.stat()) in self._on_disk

        return noted

    def _syncing(self, real: Callable[..., Any]) -> Callable[..., Any]:
        def noted(fd: Any) -> None:
            real(fd)
            self._on_disk.add(_content(os.stat(fd if isinstance(fd, int) else fd.fileno())))

        return noted


def _content(status: os.stat_result) -> tuple[int, ...]:
    """What stays the same under another name; its size does not where a rest was written later."""
    return status.st_dev, status.st_ino, status.st_size


def _files(path: Path) -> list[Path]:
    return [each for each in (path, *path.rglob("*")) if each.is_file()]


def _globals_of_callers() -> Iterator[dict[str, Any]]:
    """The names of each module that is at work, once."""
    frame, seen = sys._getframe(1), set()
    while frame:
        if id(frame.f_globals) not in seen:
            seen.add(id(frame.f_globals))
            yield frame.f_globals
        frame = frame.f_back


class Saves:
    """Lists the names of the files that are passed to torch.save between `start` and `stop`."""

    def __init__(self) -> None:
        self.names: list[str] = []
        self._torch_save: Callable[..., Any] = torch.save

    def start(self) -> None:
        self._torch_save = torch_save = torch.save

        def save(state: Any, file: Any, *args: Any, **options: Any) -> None:
            name = getattr(file, "name", "") if hasattr(file, "write") else str(file)
            self.names.append(Path(name).name if isinstance(name, str) else "")
            torch_save(state, file, *args, **options)

        torch.save = save

    def stop(self) -> None:
        torch.save = self._torch_save
