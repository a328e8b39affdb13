"""Helpers of the race's tests: entries that did not run, and processes of other users."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jsonschema  # noqa: F401 - another user could not import it if Python is in root's home

from race import board
from race.entries import Entry, Trial, digest

GOOD = [0.3, 0.31, 0.32]  # accuracies that count


def entry_of(
    accuracies: list[float],
    name: str = "one",
    machine: str = "test machine",
    joules: float | None = None,
) -> Entry:
    """Return an entry with these accuracies."""
    trials = tuple(
        Trial(seed, f"run-{seed}", top1=value, seconds=10.0 + seed, joules=joules)
        for seed, value in enumerate(accuracies)
    )
    return replace(Entry.new("quick", name, "me", "text", {}, 1), trials=trials, machine=machine)


def posted(folder: Path, entry: Entry | str, script: str = "SETTINGS = {}\n") -> Entry:
    """Put an entry on a board; one that counts if only its name is given."""
    entry = entry_of(GOOD, name=entry) if isinstance(entry, str) else entry
    entry = replace(entry, sha256=digest(script))
    return board.post(board.begin(folder, entry.track, script), entry)


def as_user(uid: int, function: Callable[[], object], gid: int | None = None) -> str:
    """Call a function in a process of a different user; return its exception, or ""."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid if gid is None else gid)
            os.setuid(uid)
            function()
        except BaseException as error:
            os.write(write, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(write)
    os.waitpid(child, 0)
    with os.fdopen(read) as file:
        return file.read()
