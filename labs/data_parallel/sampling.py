"""Show which rank gets which image of a training set, and when."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from torch.utils.data import DistributedSampler

from course.charts import COLOURS, Picture, label, legend, words_on


def sampler_order(
    images: int, ranks: int, rank_batch: int, *, epochs: int = 2, set_epoch: bool = True
) -> pd.DataFrame:
    """List the images that each rank takes from PyTorch's DistributedSampler, in order.

    Columns: epoch, rank, step, image (its number in the set). If `images` is not a multiple of
    `ranks`, the sampler repeats some from its beginning, so that all ranks have the same number.

    Args:
        rank_batch: images that a rank takes in one step.
        set_epoch: without it, every epoch has the order of the first.
    """
    rows = []
    for rank in range(ranks):
        sampler = DistributedSampler(range(images), ranks, rank)
        for epoch in range(epochs):
            if set_epoch:
                sampler.set_epoch(epoch)
            rows += [(epoch, rank, i // rank_batch, image) for i, image in enumerate(sampler)]
    return pd.DataFrame(rows, columns=["epoch", "rank", "step", "image"])


def plot_sampler_order(tables: Mapping[str, pd.DataFrame]) -> Picture:
    """Draw images as columns and epochs as rows; colours are ranks, numbers are steps.

    An image that several ranks take is striped; one that no rank takes is left white.

    Args:
        tables: from `sampler_order`, by title.
    """
    epochs = max(table["epoch"].max() + 1 for table in tables.values())
    picture = Picture(10, 0.9 + len(tables) * (0.45 + 0.34 * epochs))
    for axes, (title, table) in zip(picture.panels(len(tables)), tables.items()):
        _draw_order(axes, table)
        label(axes, title, size=10)
    ranks = sorted(set(pd.concat(list(tables.values()))["rank"]))
    legend(picture, 8, {f"rank {rank}": COLOURS[rank] for rank in ranks})
    return picture


def _draw_order(axes: Axes, table: pd.DataFrame) -> None:
    for (epoch, image), rows in table.groupby(["epoch", "image"]):
        height = 0.86 / len(rows)
        for place, row in enumerate(rows.itertuples()):
            low, colour = epoch - 0.43 + place * height, COLOURS[row.rank]
            axes.broken_barh([(image - 0.46, 0.92)], (low, height), color=colour, lw=0)
            look = {"ha": "center", "va": "center", "fontsize": 7, "color": words_on(colour)}
            axes.text(image, low + height / 2, row.step, **look)
    epochs = range(table["epoch"].max() + 1)
    axes.set_yticks(epochs, [f"epoch {epoch}" for epoch in epochs])
    axes.set(ylim=(max(epochs) + 0.5, -0.5), xlim=(-0.5, table["image"].max() + 0.5))
    axes.set_xlabel("number of the image in the set; in it, the step", fontsize=8)
