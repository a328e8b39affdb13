"""Tables in a notebook."""

import re

import numpy as np
import pandas as pd

from course.charts.tables import BAD, GOOD, WARN, as_html


def test_a_status_has_its_colour_and_nothing_else_has() -> None:
    page = as_html(pd.DataFrame({"status": ["ok", "note", "fail"], "text": ["ok", "ok", "ok"]}))
    for row, style in enumerate((GOOD, WARN, BAD)):
        (styles,) = re.findall(rf"#\w+_row{row}_col0 {{([^}}]*)}}", page)
        assert style.split(";")[0] in styles
    assert page.count("--jp-success-color1") == 1


def test_numbers_of_a_table_are_rounded_by_their_unit() -> None:
    frame = pd.DataFrame(
        {
            "rung": ["a", "b <c>"],
            "images_per_s": [907.986264, 0.0123456],
            "peak_gib": [10.98765, np.nan],
            "bubble": [0.33, 4.7],  # rounded: no digit is added
            "last_loss": [6.90912, 6.9],
            "steps": [3, 12_345],
            "sms": pd.array([132, None], dtype="Int64"),
            "tf32": [True, False],
            "machine": ["NVIDIA H200 (recorded)"] * 2,
        }
    )
    page = as_html(frame)
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert cells == [
        "a",
        "908",
        "11.0",
        "0.33",
        "6.9091",
        "3",
        "132",
        "True",
        "b &lt;c&gt;",
        "0.0123",
        "–",
        "4.70",
        "6.9000",
        "12345",
        "–",
        "False",
    ]
    assert "<small>machine: NVIDIA H200 (recorded)</small>" in page
    assert "machine</th>" not in page
    assert list(frame.columns)[-1] == "machine"  # the table is unchanged


def test_a_table_with_duplicate_names_is_rounded_too() -> None:
    page = as_html(pd.DataFrame({"a": ["<x>", "y"], "gib": [1.23456, np.nan]}, index=["r", "r"]))
    assert re.findall(r"<td>([^<]*)</td>", page) == ["&lt;x&gt;", "1.23", "y", "–"]
