"""Format tables in a notebook: numbers rounded by unit, text on the left."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from course.text import digits

if TYPE_CHECKING:
    import pandas as pd

MAX_ROWS = 40
LARGE = 1e15  # larger numbers have an exponent, such as the largest of a format
# Formats of a column's numbers, by the end of its name; "" and all other columns: three digits.
FORMATS = {"val_loss": "", "loss": "{:.4f}"}
SHARES = ("share", "efficiency", "efficiency_low", "efficiency_high", "hidden")  # in percent
IDENTIFIERS = ("step", "steps", "date", "rank", "job_id", "seed", "year")  # no thousands separator
# Columns that are shown once, below a table, if all rows have the same value.
COMMON = ("machine", "setup", "data", "site", "versions")
# Colours of a status: JupyterLab's, with a fallback.
GOOD = "color: var(--jp-success-color1, #2e7d32); font-weight: bold"
WARN = "color: var(--jp-warn-color1, #b26a00); font-weight: bold"
BAD = "color: var(--jp-error-color1, #c62828); font-weight: bold"
MUTED = "color: var(--jp-ui-font-color2, #616161); font-weight: bold"
STATUS = {"ok": GOOD, "note": WARN, "cancelled": WARN, "timeout": WARN}
STATUS |= dict.fromkeys(("fail", "failed", "oom", "lost"), BAD)
TEXT_STYLE = {"text-align": "left", "white-space": "normal", "max-width": "70ch"}
SHORT = 12  # characters: shorter words, such as a date, are not wrapped
NARROW = 24  # characters: a column of long text is not squeezed to less


def as_html(frame: pd.DataFrame, *, index: bool = True) -> str:
    """Return a table as HTML; one with duplicate names has no colours and no notes."""
    if not (frame.columns.is_unique and frame.index.is_unique):
        formats = [_formatter(name, column) for name, column in frame.items()]
        return frame.to_html(index=index, formatters=formats, na_rep="–")
    shown, notes = frame.head(MAX_ROWS), []
    for name in [name for name in frame.columns if name in COMMON]:
        if len(shown) > 1 and shown[name].astype(str).nunique() == 1:
            notes.append(f"{name}: {shown[name].iloc[0]}")
            shown = shown.drop(columns=name)
    if len(frame) > MAX_ROWS:
        notes.append(f"{len(frame) - MAX_ROWS:,} more rows")
    texts = [name for name in shown if any(isinstance(x, str | tuple) for x in shown[name])]
    numbers = [f".col{place}" for place, name in enumerate(shown) if name not in texts]
    right = [{"selector": column, "props": "text-align: right"} for column in numbers]
    style = shown.style.format(
        {name: _formatter(name, shown[name]) for name in shown}, na_rep="–", escape="html"
    )
    style = (
        style.format_index(lambda value: html.escape(str(value)), axis=0)
        .set_properties(subset=texts, **TEXT_STYLE)
        .map(_width, subset=texts)
        .map(lambda x: STATUS.get(x, ""), subset=[name for name in texts if name == "status"])
        .set_table_styles([{"selector": "th", "props": "text-align: left"}, *right])
    )
    page = (style if index else style.hide(axis="index")).to_html()
    return page + f"<p><small>{html.escape('; '.join(notes))}</small></p>" * bool(notes)


def _width(value: Any) -> str:
    length = len(str(value))
    return "white-space: nowrap" if length <= SHORT else f"min-width: {min(length, NARROW)}ch"


def _formatter(name: Any, column: pd.Series) -> Callable[[Any], str]:
    """Return a function that formats a column's values alike, without digits they don't have."""
    ending = str(name[-1] if isinstance(name, tuple) else name)
    numbers = [float(value) for value in column if _is_number(value)]
    places = next((n for n in range(9) if all(round(x, n) == x for x in numbers)), 9)
    form = next((form for end, form in FORMATS.items() if ending.endswith(end)), None)
    if ending.endswith(SHARES) and all(abs(number) <= 1.5 for number in numbers):
        form = "{:.1%}"
    elif form is None and places == 0:
        form = "{:.0f}" if ending in IDENTIFIERS else "{:,.0f}"

    def text(value: Any) -> str:
        if not _is_number(value) or abs(value) >= LARGE:
            return f"{float(value):.3g}" if _is_number(value) else str(value)
        return form.format(float(value)) if form else _three_digits(float(value), places)

    return text


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool | np.bool_) and value == value


def _three_digits(value: float, places: int) -> str:
    """Format like `digits`, but keep trailing zeros, up to the column's decimal places."""
    if value == 0 or abs(value) >= 100 or abs(value) < 1e-4:
        return digits(value)
    return f"{value:.{min(places, 2 - math.floor(math.log10(abs(value))))}f}"
