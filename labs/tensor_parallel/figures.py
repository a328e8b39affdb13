"""Figures of tensor parallelism: shards of an MLP, and strips of an image."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import ListedColormap

from course.charts import BLUE, GREEN, GREY, ORANGE, PURPLE, Picture, label

# x → gelu(x A) B: each matrix's name, left edge, width and height, the owners of its parts (rank
# 0, rank 1, or 2 for both), and the words below it.
OWNERS = (BLUE, ORANGE, GREY)
MATRICES = (
    ("x", 0, 1.2, 1.6, [[2]], "complete on both"),
    ("A", 1.8, 2, 1.2, [[0, 1]], "columns"),
    ("hidden", 5.3, 2, 1.6, [[0, 1]], "columns: nothing is sent"),
    ("B", 7.9, 1.2, 2, [[0], [1]], "rows"),
    ("", 9.7, 1.2, 1.6, [[0]], ""),
    ("", 11.4, 1.2, 1.6, [[1]], ""),
)
SIGNS = {1.5: "×", 4.55: "→ gelu →", 7.6: "×", 9.4: "=", 11.15: "+"}


def plot_mlp_shards() -> Picture:
    """Draw which parts of x → gelu(x A) B each of two ranks has, and where they are added."""
    alt = "Both ranks have x; each has half of the columns of A and of hidden, and half of B's rows"
    picture = Picture(9, 2.6, f"{alt}; an all-reduce adds the two products")
    axes = picture.panel()
    style = {"ha": "center", "va": "center"}
    for name, left, width, height, owners, words in MATRICES:
        # Not with imshow: a dark theme would treat it as a photo, which keeps its white paper.
        columns = np.linspace(left, left + width, len(owners[0]) + 1)
        rows = np.linspace(height / 2, -height / 2, len(owners) + 1)
        axes.pcolormesh(columns, rows, owners, cmap=ListedColormap(OWNERS), vmin=0, vmax=2)
        # Above, because no ink is readable on both colours in both themes.
        axes.text(left + width / 2, height / 2 + 0.2, name, fontsize=11, **style)
        axes.text(left + width / 2, -1.3, words, fontsize=9, **style)
    for rank, colour in enumerate(OWNERS[:2]):
        axes.text(1.2 * rank, 1.3, f"rank {rank}", color=colour, fontsize=10, weight="bold")
    for place, sign in SIGNS.items():
        axes.text(place, 0, sign, fontsize=10, **style)
    axes.text(11.15, -1.3, "parts of a sum: one all-reduce", fontsize=9, **style)
    axes.set(xlim=(-0.3, 12.9), ylim=(-1.5, 1.6))
    axes.set_axis_off()
    return picture


def plot_strips(rows: int = 32, halo: int = 1) -> Picture:
    """Draw which of an image's rows each of four ranks convolves: its strip and two halos."""
    colours = (BLUE, ORANGE, GREEN, PURPLE)
    picture = Picture(
        9,
        2.6,
        "Each of four ranks has a quarter of the image's rows, and convolves them with one row of "
        "each neighbour next to them",
    )
    axes, height = picture.panel(), rows // len(colours)
    for rank in range(len(colours)):
        begin = max(0, rank * height - halo)
        for row in range(begin, min(rows, (rank + 1) * height + halo)):
            axes.bar(rank, 0.85, bottom=row + 0.08, width=0.5, color=colours[row // height])
    label(axes, "Rows that each rank convolves, in the colour of the rank that has them")
    axes.set(ylim=(rows, 0), ylabel="row of the image", yticks=range(0, rows + 1, height))
    axes.set_xticks(range(len(colours)), [f"rank {rank}" for rank in range(len(colours))])
    return picture
