"""Find the line of the user's own code that is being executed."""

from __future__ import annotations

import linecache
import re
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
# Libraries may be in folders of several environments, and of the system.
INSTALLED = re.compile(r"[/\\](?:site|dist)-packages[/\\]")
PACKAGE = re.compile(rf"{INSTALLED.pattern}(?!torch[/\\]|trainspeed[/\\])")


@cache
def is_own(file: str) -> bool:
    """Return whether a source file is the user's, and not of an installed library."""
    return not file.startswith(LIBRARIES) and not INSTALLED.search(file)


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
    """Return the innermost line of the user's code that led to this call; "" if there is none."""
    return own_line_of(sys._getframe(skip))


def own_line_of(frame: FrameType) -> str:
    """Return the innermost line of the user's code in a stack; "" if there is none.

    A program that is itself installed (`python -m timm.train`) has none: then the innermost line
    outside PyTorch counts.
    """
    for is_wanted in (is_own, PACKAGE.search):
        for each in frames(frame):
            if is_wanted(each.f_code.co_filename):
                return describe(each)
    return ""


def direct_line_of(frame: FrameType) -> str:
    """Return the user's line that calls operators, not through a module or another library."""
    for each in frames(frame):
        file = each.f_code.co_filename
        if is_own(file):
            return describe(each)
        if PACKAGE.search(file) or each.f_code.co_name == "_call_impl":
            return ""
    return ""
