"""Figures of a mesh: which rank stores which part of a weight."""

from __future__ import annotations

from course.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, Picture, label, strip

COLOURS = (BLUE, ORANGE, GREEN, PURPLE)  # of ranks 0 to 3
# On a mesh of 2 × 2: the ranks of each part, row by row.
WEIGHTS = {
    "qkv, mlp_in: rows by tensor,\nthen rows by data": [["0"], ["2"], ["1"], ["3"]],
    "out, mlp_out: columns by tensor,\nrows by data": [["0", "1"], ["2", "3"]],
    "tokens, positions, norms:\nrows by data": [["0 and 1"], ["2 and 3"]],
}


def plot_shards() -> Picture:
    """Draw which rank stores which part of a GPT's weights on a mesh of 2 × 2 (data × tensor)."""
    parts = "; ".join(
        f"{title}: {' / '.join(' | '.join(row) for row in rows)}" for title, rows in WEIGHTS.items()
    )
    picture = Picture(9, 2.4, f"Ranks that store each part of a weight. {parts}")
    for axes, (title, rows) in zip(picture.panels(1, 3), WEIGHTS.items()):
        strip(axes, {str(place): [_cell(ranks) for ranks in row] for place, row in enumerate(rows)})
        label(axes, title)
        axes.set_axis_off()
    return picture


def _cell(ranks: str) -> tuple[str, str]:
    return (COLOURS[int(ranks)], f"rank {ranks}") if ranks.isdigit() else (GREY, f"ranks {ranks}")
