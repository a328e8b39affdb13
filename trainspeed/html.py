"""The page of a profile as one HTML file, with the timeline of one traced iteration."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd

from trainspeed.page import text_of
from trainspeed.traces import Trace, steps

WIDTH, ROW = 1100, 18  # pixels
LONGEST = 2000  # bars of a row: shorter ones than the longest of these are left out
MOST_ROWS = 12
COLOURS = {"product": "#0072b2", "other": "#e69f00", "copy": "#999999", "nccl": "#cc79a7"}
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 1160px; padding: 0 1em }
pre { font: 13px/1.4 ui-monospace, monospace; white-space: pre-wrap }
svg { width: 100%; height: auto } text { font: 11px system-ui, sans-serif; fill: currentColor }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd } }
"""


def html_of(values: dict[str, Any], trace: Trace | None) -> str:
    """Return the page as HTML that needs nothing else.

    Args:
        values: from `trainspeed.page.values_of`.
        trace: of the first rank; None without one.
    """
    title = escape(" ".join(values["command"]))
    timeline = f"<h2>One iteration</h2>{_timeline(trace)}" if trace is not None else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{STYLE}</style><h1>{title}</h1><pre>{escape(text_of(values).strip())}</pre>"
        f"{timeline}</html>"
    )


def _timeline(trace: Trace) -> str:
    """Draw the last traced iteration: a row for each thread, and for each stream of a device."""
    windows = steps(trace)
    if not len(windows):
        return "<p>The trace has no complete iteration.</p>"
    begin, end = windows["start_s"].iloc[-1], windows["end_s"].iloc[-1]
    rows = {}
    for thread, group in _within(trace.operators, begin, end).groupby("thread"):
        rows[f"thread {thread}"] = group[group["depth"] == group["depth"].min()]
    for (device, stream), group in _within(trace.kernels, begin, end).groupby(["device", "stream"]):
        rows[f"GPU {device}, stream {stream}"] = group.assign(name=group["kernel"])
    rows = dict(sorted(rows.items(), key=lambda item: -item[1]["duration_s"].sum())[:MOST_ROWS])
    scale = WIDTH / (end - begin)
    parts = [_row(name, table, begin, scale, at) for at, (name, table) in enumerate(rows.items())]
    height = 2 * ROW * len(rows) + ROW
    ends = f"{1e3 * (end - begin):.3g} ms"
    label = f"A timeline of one iteration, {ends}, with {len(rows)} rows"
    return (
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{label}">{"".join(parts)}'
        f'<text x="{WIDTH}" y="{height - 4}" text-anchor="end">{ends}, traced</text></svg>'
        f"<p>Blue: products and convolutions. Orange: everything else. Grey: copies. Pink: "
        f"communication. Point at a bar for its name.</p>"
    )


def _within(table: pd.DataFrame, begin: float, end: float) -> pd.DataFrame:
    return table[(table["start_s"] >= begin) & (table["start_s"] < end)]


def _row(name: str, table: pd.DataFrame, begin: float, scale: float, at: int) -> str:
    y = 2 * ROW * at
    bars = [f'<text x="0" y="{y + ROW - 5}">{escape(name)}</text>']
    for row in table.nlargest(LONGEST, "duration_s").itertuples():
        x, width = scale * (row.start_s - begin), max(0.5, scale * row.duration_s)
        title = escape(f"{row.name}: {1e3 * row.duration_s:.3g} ms")
        bars.append(
            f'<rect x="{x:.1f}" y="{y + ROW}" width="{width:.1f}" height="{ROW - 2}" '
            f'fill="{COLOURS[_kind(row)]}"><title>{title}</title></rect>'
        )
    return "".join(bars)


def _kind(row: Any) -> str:
    from trainspeed.parts import PRODUCT

    name = f"{row.name} {getattr(row, 'operator', '')}"
    if "nccl" in name.lower() or name.startswith(("gloo", "c10d")):
        return "nccl"
    if "copy" in name.lower() or "memcpy" in name.lower():
        return "copy"
    return "product" if PRODUCT.search(name.split()[-1]) or PRODUCT.search(name) else "other"
