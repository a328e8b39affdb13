"""A folder on this machine that only its user can read and write: for locks, sockets, caches."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path


def user_folder() -> Path:
    """Return this user's own folder in the temporary directory of this machine; create it first.

    Raises:
        PermissionError: something else has its name, or other users can write to it.
    """
    folder = Path(tempfile.gettempdir()) / f"make-training-fast-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()  # not what a link leads to
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise PermissionError(
            f"{folder} must be a folder that belongs to you, and it does not: remove it or ask its "
            f"owner to, or set TMPDIR to a folder of your own (chmod 700)"
        )
    if found.st_mode & 0o777 != 0o700:
        raise PermissionError(
            f"{folder} has mode {found.st_mode & 0o777:o}, and other users could change it: "
            f"expected 700. Run: chmod 700 {folder}"
        )
    return folder
