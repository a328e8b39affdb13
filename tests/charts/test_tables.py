"""Tables in a notebook."""

import re

import numpy as np
import pandas as pd

from course.charts.tables import BAD, GOOD, MAX_ROWS, WARN, as_html


def test_a_status_has_its_colour_and_nothing_else_has() -> None:
    page = as_html(pd.DataFrame({"status": ["ok", "note", "fail"], "text": ["ok", "ok", "ok"]}))
    for row, style in enumerate((GOOD, WARN, BAD)):
        (styles,) = re.findall(rf"#\w+_row{row}_col0 {{([^}}]*)}}", page)
        assert style.split(";")[0] in styles
    assert page.count("--jp-success-color1") == 1


def test_a_table_without_a_status_has_no_colour() -> None:
    assert "--jp-" not in as_html(pd.DataFrame({"a": [1, 2], "b": ["ok", "fail"]}))


def test_numbers_of_a_table_are_rounded_by_their_unit() -> None:
    frame = pd.DataFrame(
        {
            "rung": ["a", "b <c>"],
            "images_per_s": [907.986264, 0.0123456],
            "peak_gib": [10.98765, np.nan],
            "last_loss": [6.90912, 6.9],
            "steps": [3, 12_345],
            "tf32": [True, False],
            "machine": ["NVIDIA H200 (recorded)"] * 2,
        }
    )
    page = as_html(frame)
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", page)
    assert cells == [
        "a",
        "908",
        "10.99",
        "6.9091",
        "3",
        "True",
        "b &lt;c&gt;",
        "0.0123",
        "–",
        "6.9000",
        "12345",
        "False",
    ]
    assert "<small>machine: NVIDIA H200 (recorded)</small>" in page
    assert "machine</th>" not in page
    assert list(frame.columns)[-1] == "machine"  # the table is unchanged


def test_text_is_on_the_left_and_numbers_on_the_right() -> None:
    page = as_html(pd.DataFrame({"why": ["a sentence"], "images_per_s": [1.5]}))
    identity = re.search(r"#(T_\w+)_row0_col0", page)
    assert identity and "text-align: left" in page
    assert (
        f"{identity[0]} {{" in page and f"#{identity[1]}_row0_col1" not in page.split("</style>")[0]
    )


def test_a_long_table_has_the_number_of_further_rows() -> None:
    page = as_html(pd.DataFrame({"x": range(MAX_ROWS + 7)}))
    assert page.count("<tr>") == MAX_ROWS + 1 and "7 more rows" in page


def test_a_table_with_duplicate_names_is_not_formatted() -> None:
    assert "<td>2</td>" in as_html(pd.DataFrame([[1, 2]], columns=["a", "a"]))


def test_the_numbers_of_a_column_are_shown_alike() -> None:
    frame = pd.DataFrame(
        {"gpus": [8, 2048], "step_s": [39.0, 39.25], "efficiency": [1.0, 0.978], "share": [8, 16]}
    )
    cells = re.findall(r"<td[^>]*>([^<]*)</td>", as_html(frame))
    assert cells == ["8", "39.0", "100.0%", "8", "2,048", "39.2", "97.8%", "16"]
