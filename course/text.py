"""Format numbers and text for people."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable
from difflib import get_close_matches
from pathlib import Path
from textwrap import TextWrapper

LINE, TEXT = 1500, 4000  # characters of a line, and of a record's error, that are shown at most
ITALIC = r"(?<![\w*])\*(\w[^*]*)\*(?![\w*])"  # not the asterisks of a product
CONTROL = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # a colour, or a move of the cursor
    r"|\x1b[\]P^_X].*?(?:\x07|\x1b\\|$)"  # a title of the window, a link
    r"|\x1b.?|[\x00-\x08\x0b-\x1f\x7f-\x9f]",
    re.MULTILINE,
)


def read_utf8(path: Path) -> str:
    """Read a text file that a person has edited, such as a script, with any line ends.

    Raises:
        ValueError: it is not UTF-8; the message names the file and the line.
    """
    data = path.read_bytes()
    place = data.find(b"\0")
    try:
        text = data.decode("utf-8-sig")  # without the mark that some editors write first
    except UnicodeDecodeError as error:
        place = error.start
    if place >= 0:
        line = data.count(b"\n", 0, place) + 1
        raise ValueError(
            f"{'/'.join(path.parts[-2:])}, line {line}: the byte 0x{data[place]:02x} is no text in "
            f"UTF-8: save the file as UTF-8 in your editor"
        )
    return re.sub(r"\r\n?", "\n", text)


def digits(value: float) -> str:
    """Format a number for people: three significant digits, and no exponent."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    if 0 < abs(value) < 1e-4:
        return f"{value:.{2 - math.floor(math.log10(abs(value)))}f}".rstrip("0")
    return f"{value:.3g}"


def clock(passed_s: float) -> str:
    """Format a duration as Slurm's squeue does: 0:07, 1:00:07, 2-01:00:07."""
    minutes, secs = divmod(max(0, int(passed_s)), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{secs:02}"
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def closest(word: str, known: Iterable[str]) -> str:
    """Return the known word nearest to a misspelt one, as " (did you mean 'this'?)"; or ""."""
    near = get_close_matches(word, known, n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def printable(text: str) -> str:
    """Remove terminal escapes and control characters from text, and shorten lines to LINE.

    A longer line keeps both its ends, and so the type of an error with a huge message.
    """
    text = CONTROL.sub("", re.sub(r"\r\n?", "\n", text))
    text = text.encode(errors="replace").decode()  # half of a surrogate pair could not be printed
    return "\n".join(shortened(line, LINE) for line in text.split("\n"))


def shortened(text: str, limit: int) -> str:
    """Cut out the middle of a text with more than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} characters left out) … {text[-half:]}"


def wrap_text(text: str, width: int = 88) -> str:
    """Wrap a text into lines that JupyterLab shows unbroken; it breaks longer ones within words."""
    wrapper = TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(wrapper.fill(line) for line in text.splitlines())


def as_html(text: str) -> str:
    """Return text as HTML, with code in `backticks` and *italic* text."""
    # Code first: its content stays as it is.
    parts = re.split(r"`([^`]+)`", html.escape(text))
    parts[1::2] = [f"<code>{code}</code>" for code in parts[1::2]]
    parts[::2] = [re.sub(ITALIC, r"<em>\1</em>", part) for part in parts[::2]]
    return "".join(parts)
