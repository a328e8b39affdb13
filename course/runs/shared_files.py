"""Read files safely in a folder to which other people can write.

An entry's author can put a link to your private file there, a pipe that never ends or a device,
and swap files while you read. So each part of the path is opened separately, without following
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

LIMIT_BYTES = 256 * 1024  # per file; the course's entries have 10 KiB
NO_LINKS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not block


def read_text(root: Path, *names: str) -> str:
    """Return the text of the file root/names….

    Raises:
        FileNotFoundError: there is no such file.
        OSError, ValueError: it cannot be trusted, or is not text.
    """
    *folders, name = names
    with _open_folder(root, *folders) as folder, _open(name, folder) as handle:
        status, owner = os.fstat(handle), os.fstat(folder).st_uid
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{name} is not a regular file")
        if status.st_uid != owner:
            users = user_name(status.st_uid), user_name(owner)
            raise ValueError(f"{name} belongs to {users[0]}, and its folder to {users[1]}")
        with open(handle, "rb", closefd=False) as file:
            data = file.read(LIMIT_BYTES + 1)
        if len(data) > LIMIT_BYTES:
            raise ValueError(f"{name} has more than {LIMIT_BYTES // 1024} KiB")
        return data.decode()


def list_folder(root: Path, name: str) -> list[str]:
    """Return the names in the folder root/name, sorted. Raises like `read_text`."""
    with _open_folder(root, name) as folder:
        return sorted(os.listdir(folder))


def user_name(uid: int) -> str:
    """Return a user's name, or the number if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"user {uid}"


@contextmanager
def _open_folder(root: Path, *names: str) -> Iterator[int]:
    """Open root/names…; the first folder in root must belong to root's owner."""
    handle = os.open(root, os.O_RDONLY | os.O_DIRECTORY)
    try:
        owner = os.fstat(handle).st_uid
        for number, name in enumerate(names):
            with _open(name, handle, os.O_DIRECTORY) as inner:
                os.dup2(inner, handle)
            if number == 0 and (other := os.fstat(handle).st_uid) != owner:
                raise ValueError(
                    f"the folder belongs to {user_name(other)}, and the {root.name} to "
                    f"{user_name(owner)}, who should move it away"
                )
        yield handle
    finally:
        os.close(handle)


@contextmanager
def _open(name: str, folder: int, flags: int = 0) -> Iterator[int]:
    try:
        handle = os.open(name, NO_LINKS | flags, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR):
            kind = "a link" if error.errno == errno.ELOOP else "a link, or not a folder"
            raise ValueError(f"{name} is {kind}") from error
        raise
    try:
        yield handle
    finally:
        os.close(handle)
