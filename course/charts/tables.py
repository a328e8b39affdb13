"""Tables in a notebook: one formatter for all, which rounds by unit and sets words to the left."""

from __future__ import annotations

import html
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from course.text import digits

if TYPE_CHECKING:
    import pandas as pd

MOST_ROWS = 40
MOST = 1e15  # above it a number has an exponent: the largest of a format, for instance
# How numbers of a column are shown, by the end of its name; all others with three digits.
BY_UNIT = {"loss": "{:.4f}", "_gib": "{:.2f}", "GiB": "{:.2f}", "_ms": "{:.2f}"}
SHARES = ("share", "efficiency", "efficiency_low", "efficiency_high", "hidden")  # of 1, in percent
NUMBERS = ("step", "steps", "date", "rank", "job_id", "seed")  # names rather than amounts
# Columns that stand under a table, once, where all rows say the same.
SHARED = ("machine", "setup", "data", "site", "versions")
# Colours of a status, which stands there as a word, too; JupyterLab's own, or else fixed ones.
GOOD = "color: var(--jp-success-color1, #2e7d32); font-weight: bold"
MIND = "color: var(--jp-warn-color1, #b26a00); font-weight: bold"
BAD = "color: var(--jp-error-color1, #c62828); font-weight: bold"
STATUS = {"ok": GOOD, "note": MIND, "cancelled": MIND, "timeout": MIND}
STATUS |= dict.fromkeys(("fail", "failed", "oom", "lost"), BAD)
LEFT = {"text-align": "left", "white-space": "normal", "max-width": "70ch"}
WHOLE = "white-space: nowrap"  # a date, a name: words so short are not broken
SHORT = 12  # characters


def as_html(frame: pd.DataFrame, *, index: bool = True) -> str:
    """A table as a page's text. Raises nothing: what cannot be laid out is shown as it is."""
    if not (frame.columns.is_unique and frame.index.is_unique):
        return frame.to_html(index=index)
    shared, shown = _shared(frame.head(MOST_ROWS)), frame.head(MOST_ROWS)
    shown = shown.drop(columns=[*shared])
    words = [name for name in shown.columns if _is_text(shown[name])]
    page = (
        shown.style.format(
            {name: _formatter(name, shown[name]) for name in shown.columns}, escape="html"
        )
        .format_index(lambda value: html.escape(str(value)), axis=0)
        .set_properties(subset=words, **LEFT)
        .map(lambda word: WHOLE if len(str(word)) <= SHORT else "", subset=words)
        .map(lambda word: STATUS.get(word, ""), subset=[n for n in words if n == "status"])
        .set_table_styles(
            [
                {"selector": "th", "props": "text-align: left"},
                *(
                    {"selector": f"th.col{place}", "props": "text-align: right"}
                    for place, name in enumerate(shown.columns)
                    if name not in words
                ),
            ]
        )
    )
    if not index:
        page = page.hide(axis="index")
    under = [f"{name}: {value}" for name, value in shared.items()]
    if len(frame) > MOST_ROWS:
        under.append(f"{len(frame) - MOST_ROWS:,} rows more")
    notes = f"<p><small>{html.escape('; '.join(under))}</small></p>" if under else ""
    return page.to_html() + notes


def _shared(frame: pd.DataFrame) -> dict[str, Any]:
    """Columns that say the same in every row, where that needs no column."""
    if len(frame) < 2:
        return {}
    found = [name for name in frame.columns if name in SHARED]
    return {name: frame[name].iloc[0] for name in found if frame[name].astype(str).nunique() == 1}


def _is_text(column: pd.Series) -> bool:
    return any(isinstance(each, str | tuple) for each in column)


def _formatter(name: Any, column: pd.Series) -> Callable[[Any], str]:
    """How a column's values are shown: all of them alike."""
    ending = str(name[-1] if isinstance(name, tuple) else name)
    numbers = [float(each) for each in column if _is_number(each)]
    form = next((form for end, form in BY_UNIT.items() if ending.endswith(end)), None)
    if ending.endswith(SHARES) and all(abs(each) <= 1.5 for each in numbers):
        form = "{:.1%}"
    elif form is None and all(each.is_integer() for each in numbers):
        form = "{:.0f}" if ending in NUMBERS else "{:,.0f}"

    def shown(value: Any) -> str:
        if value is None or (isinstance(value, float) and value != value):
            return "–"
        if not _is_number(value):
            return str(value)
        if abs(value) >= MOST:
            return f"{float(value):.3g}"
        return form.format(float(value)) if form else _three_digits(float(value))

    return shown


def _is_number(value: Any) -> bool:
    return hasattr(value, "__float__") and not isinstance(value, bool | np.bool_) and value == value


def _three_digits(value: float) -> str:
    """As `digits`, with the zeros at its end: the other values of the column have them, too."""
    if value == 0 or abs(value) >= 100 or abs(value) < 1e-4:
        return digits(value)
    return f"{value:.{max(0, 2 - math.floor(math.log10(abs(value))))}f}"
