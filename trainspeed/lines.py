"""Find the line of the user's own code that is being executed."""

from __future__ import annotations

import linecache
import sys
import sysconfig
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import FrameType

_PATHS = sysconfig.get_paths()
LIBRARIES = tuple(
    {f"{_PATHS[name]}/" for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {f"{Path(__file__).resolve().parent}/", "<"}
)


@cache
def is_own(file: str) -> bool:
    """Return whether a source file is the user's, and not of an installed library."""
    return not file.startswith(LIBRARIES)


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame and those that called it, the innermost first."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def describe(frame: FrameType) -> str:
    """Return a frame as `file.py:12: code`."""
    file, number = frame.f_code.co_filename, frame.f_lineno
    return f"{Path(file).name}:{number}: {linecache.getline(file, number).strip()}".rstrip(": ")


def own_line(skip: int = 1) -> str:
    """Return the innermost line of the user's code that led to this call; "" if there is none.

    A program that is itself installed (`python -m timm.train`) has none: then the innermost line
    outside PyTorch counts.
    """
    stack = [*frames(sys._getframe(skip))]
    own = next((frame for frame in stack if is_own(frame.f_code.co_filename)), None)
    if own is None:
        outside = [f for f in stack if not f.f_code.co_filename.startswith("<")]
        ours = str(Path(__file__).resolve().parent)
        own = next(
            (
                f
                for f in outside
                if f"{Path('site-packages', 'torch')}/" not in f.f_code.co_filename
                and not f.f_code.co_filename.startswith((ours, _PATHS["stdlib"] + "/contextlib"))
                and "site-packages" in f.f_code.co_filename
            ),
            None,
        )
    return describe(own) if own else ""
