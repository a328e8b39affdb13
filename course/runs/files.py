"""Files: written so that they are complete or absent, and read in part."""

from __future__ import annotations

import errno
import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any

from course.text import printable

PROJECT = Path(__file__).resolve().parents[2]
UNFINISHED = ".unfinished-"  # prefix of a file while it is written
SUBMITIT_LINES = 4  # written by submitit at the end of a log, at most
PART_BYTES, LINE_BYTES = 2**20, 400  # to read: logs can be larger than memory


def folder_from(variable: str) -> Path | None:
    """Return the folder that an environment variable names, or None if it is not set, or empty.

    Relative paths start from the project's folder, so that a terminal and a notebook, whose working
    directory is notebooks/, agree.
    """
    value = os.environ.get(variable, "").strip()
    return PROJECT / Path(value).expanduser() if value else None


@contextmanager
def complete_file(path: Path, *, mode: int | None = None, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a file that gets its name when it is complete; after an error, no file is left.

    Args:
        mode: its permissions, whatever the umask is; None: those that the umask leaves.
        sync: wait until it is on the disk, so that it survives a power failure.

    Raises:
        OSError: for instance, the disk is full, even if the writer reported a different error.
    """
    draft = path.with_name(UNFINISHED + secrets.token_hex(8))
    create = partial(os.open, mode=0o666 if mode is None else mode)
    # Not only for writing: NumPy would write to its descriptor, and not report why it cannot.
    file = open(draft, "x+b", opener=create)  # noqa: SIM115
    try:
        with file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            if mode is not None:
                os.fchmod(file.fileno(), mode)
        os.replace(draft, path)
    except BaseException as error:
        os.unlink(draft)
        # torch.save raises "unexpected pos 768 vs 662" if a write fails.
        if getattr(error.__context__, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise error.__context__ from None
        raise


def write_atomically(path: Path, text: str, mode: int | None = None) -> None:
    """Write a text so that readers get the old version or the new one, never a part.

    Args:
        mode: as for `complete_file`.
    """
    with complete_file(path, mode=mode) as file:
        file.write(text.encode())


def link_or_copy(source: Path | str, target: Path | str) -> None:
    """Give a file a second name, without copying it if the file system has hard links."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def read_dict(path: Path) -> dict[str, Any]:
    """Read a JSON object; return {} if the file has none."""
    try:
        value = json.loads(path.read_text()) if path.is_file() else {}  # a pipe would be waited for
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def tail(path: Path, lines: int = 20) -> str:
    """Return the last lines of a text file, printable; "" if there is no file."""
    if not path.is_file():
        return ""
    with path.open("rb") as file:
        length = max(PART_BYTES, LINE_BYTES * (lines + SUBMITIT_LINES))
        file.seek(max(0, path.stat().st_size - length))
        ending = printable(file.read().decode(errors="replace")).rstrip().split("\n")
    # submitit reports that its own function succeeded, even if the run failed.
    return "\n".join([line for line in ending if not line.startswith("submitit ")][-lines:])


def finite(value: float) -> float | None:
    """Return the number, or None for NaN and infinity, which JSON does not have."""
    return value if math.isfinite(value) else None
