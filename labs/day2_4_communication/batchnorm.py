"""What BatchNorm's running statistics are on each rank, and how far apart they lie."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from course.runs.run import Run
from course.training.sync_batchnorm import FILE

if TYPE_CHECKING:
    import pandas as pd


def statistics(run: Run) -> pd.DataFrame:
    """Running statistics by layer and rank: layer, depth (from 0), rank, channel, mean, var.

    Raises:
        ValueError: the run's script did not save them.
    """
    import pandas as pd

    tables = []
    for rank in range(run.launched.get("gpus", 1)):
        path = run.folder / FILE.format(rank)
        if not path.exists():
            raise ValueError(f"{run.name} has no {path.name}: its script must call save_statistics")
        layers = torch.load(path)
        for depth, (name, (mean, var)) in enumerate(layers.items()):
            tables.append(
                pd.DataFrame(
                    {
                        "layer": name,
                        "depth": depth,
                        "rank": rank,
                        "channel": range(len(mean)),
                        "mean": mean.numpy(),
                        "var": var.numpy(),
                    }
                )
            )
    return pd.concat(tables, ignore_index=True)


def spread(table: pd.DataFrame) -> pd.DataFrame:
    """How far the ranks' running means lie apart, by layer: layer, depth, spread, largest.

    The distance between the largest and the smallest mean over the ranks, in standard deviations
    of the channel (so 0.1 is a tenth of what BatchNorm takes for 1): its median over the channels,
    and the largest.
    """
    channels = table.groupby(["depth", "layer", "channel"])
    distance = channels["mean"].agg(lambda means: means.max() - means.min())
    distance /= channels["var"].mean().pow(0.5)
    found = distance.groupby(["depth", "layer"]).agg(["median", "max"]).reset_index()
    return found.rename(columns={"median": "spread", "max": "largest"})
