"""Numbers formatted for people, and texts that people wrote."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from course.text import LINE, digits, printable, read_utf8


@pytest.mark.parametrize(
    "value, shown",
    [(0, "0"), (3727.4, "3,727"), (2.345, "2.35"), (0.00012, "0.00012"), (0.0000123, "0.0000123")]
    + [(-2e-7, "-0.0000002"), (1e-4, "0.0001"), (99.96, "100"), (float("nan"), "nan")],
)
def test_three_digits_and_no_exponent(value: float, shown: str) -> None:
    assert digits(value) == shown


@pytest.mark.parametrize(
    "text, shown",
    [
        ("\x1b[1;31mred\x1b[0m \x1b]0;a title\x07and\x1b]8;;http://x\x1b\\link", "red andlink"),
        ("10 %\r100 %\r\nnext\x00\x08\x9b\x7f\tcell", "10 %\n100 %\nnext\tcell"),
        ("caf\udce9.jpg", "caf?.jpg"),
    ],
)
def test_no_control_character_reaches_a_terminal(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_long_line_keeps_both_its_ends() -> None:
    shown = printable("ValueError: " + "x" * 100_000 + " the end")
    assert shown.startswith("ValueError: x") and shown.endswith("x the end")
    assert "characters left out" in shown and len(shown) < LINE + 50


@pytest.mark.parametrize("data", [b"a\nb\n", b"a\r\nb\r\n", b"a\rb\r", b"\xef\xbb\xbfa\nb\n"])
def test_texts_of_any_editor_are_read_alike(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(data)
    assert read_utf8(path) == "a\nb\n"


@pytest.mark.parametrize("data", ["a\nb".encode("utf-16"), b"\xff\n"])
def test_other_encodings_are_refused(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "script.py"
    path.write_bytes(data)
    with pytest.raises(ValueError, match="script.py, line 1: the byte 0xff is no text in UTF-8"):
        read_utf8(path)


def test_a_command_shows_names_that_are_no_text(tmp_path: Path) -> None:
    script = tmp_path / os.fsdecode(b"caf\xe9.py")
    script.write_bytes(b"one\ntwo\n\0\n")
    command = [sys.executable, "-m", "course", "run", str(script), "--dry-run"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 1
    assert "caf\\udce9.py, line 3: the byte 0x00 is no text in UTF-8" in done.stderr
