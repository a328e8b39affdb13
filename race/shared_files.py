"""Read files in a folder that other people can write to.

An entry's author can put a link to your private file there, a pipe that never ends or a device,
and swap files while you read. So each part of the path is opened on its own, without following
links, and the open file is checked, not its name.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT_BYTES = 256 * 1024  # of one file; the shipped entries have 10 KiB
WITHOUT_LINKS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not block


def read_text(root: Path, *names: str) -> str:
    """Return the text of the file root/names….

    Raises:
        FileNotFoundError: there is no such file.
        OSError, ValueError: it cannot be trusted, or is not text; the message says why.
    """
    *folders, name = names
    with _folder(root, *folders) as folder, _opened(name, folder) as handle:
        found, owner = os.fstat(handle), os.fstat(folder).st_uid
        if not stat.S_ISREG(found.st_mode):
            raise ValueError(f"{name} is not a regular file")
        if found.st_uid != owner:
            raise ValueError(
                f"{name} belongs to {user_name(found.st_uid)}, and its folder to {user_name(owner)}"
            )
        data = b""
        while len(data) <= LIMIT_BYTES and (part := os.read(handle, LIMIT_BYTES)):
            data += part
        if len(data) > LIMIT_BYTES:
            raise ValueError(f"{name} has more than {LIMIT_BYTES // 1024} KiB")
        return data.decode()


def list_folder(root: Path, name: str) -> list[str]:
    """Return the names in the folder root/name, sorted. Raises as `read_text` does."""
    with _folder(root, name) as folder:
        return sorted(os.listdir(folder))


def user_name(uid: int) -> str:
    """Return a user's name, or the number where it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@contextmanager
def _folder(root: Path, *names: str) -> Iterator[int]:
    """Open root/names…; the first folder in root must belong to root's owner."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        owner = os.fstat(handle).st_uid
        for number, name in enumerate(names):
            with _opened(name, handle, os.O_DIRECTORY) as inner:
                os.dup2(inner, handle)
            if number == 0 and (other := os.fstat(handle).st_uid) != owner:
                raise ValueError(
                    f"the folder belongs to {user_name(other)}, and the board to "
                    f"{user_name(owner)}, who should move it away"
                )
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _opened(name: str, folder: int, flags: int = 0) -> Iterator[int]:
    try:
        handle = os.open(name, WITHOUT_LINKS | flags, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise ValueError(f"{name} is a link") from error
        if error.errno == errno.ENOTDIR:
            raise ValueError(f"{name} is a link, or not a folder") from error
        raise
    try:
        yield handle
    finally:
        os.close(handle)
