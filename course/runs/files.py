"""Files that are there whole, or not at all."""

from __future__ import annotations

import errno
import json
import math
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

UNFINISHED = ".unfinished-"  # in front of a file that is being written


@contextmanager
def whole_file(path: Path, *, mode: int = 0o644, sync: bool = True) -> Iterator[IO[bytes]]:
    """Open a file to write that appears under its name when it is complete; else nothing is left.

    Args:
        sync: wait until it is on the disk, so that it outlasts a power cut.

    Raises:
        OSError: the disk is full, for instance, whatever the writer made of that.
    """
    # Not a plain file: NumPy would write into that by itself, and not say why it cannot.
    file = tempfile.NamedTemporaryFile(dir=path.parent, prefix=UNFINISHED, delete=False)  # noqa: SIM115
    draft = file.name
    try:
        with file:
            yield file
            file.flush()
            if sync:
                os.fsync(file.fileno())
            os.fchmod(file.fileno(), mode)  # by its name it could be another's by now
        os.replace(draft, path)
    except BaseException as error:
        os.unlink(draft)
        # torch.save says "unexpected pos 768 vs 662" where a write fails.
        if getattr(error.__context__, "errno", None) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise error.__context__ from None
        raise


def write_atomically(path: Path, text: str, mode: int = 0o644) -> None:
    """Write so that a reader sees the old text or the new, never a part."""
    with whole_file(path, mode=mode) as file:
        file.write(text.encode())


def read_dict(path: Path) -> dict[str, Any]:
    """The JSON object in a file; {} where there is none."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def finite(value: float) -> float | None:
    """A number as JSON can have it, which knows no NaN and no infinity."""
    return value if math.isfinite(value) else None
