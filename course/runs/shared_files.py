"""Read files safely in a folder to which other people can write.

A file's author can put a link to your private file there, a pipe that never ends or a device,
and swap files while you read. So each part of the path is opened separately, without following
links, and the open file is checked, not its name.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

LIMIT_BYTES = 256 * 1024  # per file; the course's entries have 10 KiB
ACL_USER, ACL_OWNING_GROUP, ACL_GROUP, ACL_WRITE = 2, 4, 8, 2  # tags, and a permission
NO_LINKS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK  # a pipe must not block


def read_text(root: Path, *names: str, owner: int | None = None, limit: int = LIMIT_BYTES) -> str:
    """Return the text of the file root/names….

    Args:
        owner: the uid that the file must belong to; by default that of its folder's owner. With
            an owner, the file may have no second name: that would be a link to their other files.
        limit: of its size, in bytes.

    Raises:
        FileNotFoundError: there is no such file.
        OSError, ValueError: it cannot be trusted, or is not text.
    """
    *folders, name = names
    with _open_folder(root, *folders) as folder, _open(name, folder) as handle:
        status, folder_owner = os.fstat(handle), os.fstat(folder).st_uid
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{name} is not a regular file")
        if owner is None and status.st_uid != folder_owner:
            users = user_name(status.st_uid), user_name(folder_owner)
            raise ValueError(f"{name} belongs to {users[0]}, and its folder to {users[1]}")
        if owner is not None and (status.st_uid != owner or status.st_nlink > 1):
            raise ValueError(f"{name} is a link, or was replaced by someone else")
        with open(handle, "rb", closefd=False) as file:
            data = file.read(limit + 1)
        if len(data) > limit:
            raise ValueError(f"{name} has more than {limit // 1024} KiB")
        return data.decode()


def statuses(root: Path, name: str) -> Iterator[tuple[str, os.stat_result | None]]:
    """Yield each name in the folder root/name with its status, not that of a link's target.

    It is None if it can't be read: a user can mount a disk (FUSE) over a folder of theirs, into
    which no one else, not even root, may look. Raises like `read_text`.
    """
    with _open_folder(root, name) as folder, os.scandir(folder) as entries:
        for entry in entries:
            try:
                yield entry.name, entry.stat(follow_symlinks=False)
            except FileNotFoundError:  # removed in the meantime
                continue
            except OSError:
                yield entry.name, None


def access_list(path: str | Path, kind: str = "access") -> list[tuple[int, int, int]]:
    """Return the entries of a path's access control list (ACL): tag, permissions, uid or gid.

    Args:
        kind: "default" for the list that new files in a folder get.
    """
    try:
        value = os.getxattr(path, f"system.posix_acl_{kind}")
    except (AttributeError, OSError):  # macOS; no list, or a disk without such lists
        return []
    return [*struct.iter_unpack("<HHI", value[4:])]


def one_line(text: str) -> str:
    """Return another user's text on one line, without characters that control a terminal."""
    return "".join(
        character if character.isprintable() else " " if character.isspace() else "\ufffd"
        for character in text
    )


def user_name(uid: int) -> str:
    """Return a user's name, or the number if it has none."""
    return account_name(uid) or f"user {uid}"


def account_name(uid: int) -> str:
    """Return a user's name; "" if there is no such account."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return ""


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
                    f"the folder belongs to {user_name(other)}, and {root.name} to "
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
