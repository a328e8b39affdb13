"""Numbers formatted for people."""

import pytest

from course.text import LINE, digits, printable


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
