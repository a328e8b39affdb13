"""BatchNorm's running statistics on each rank, and how far apart they are."""

from __future__ import annotations

import pandas as pd
import torch

from course import Run


def running_statistics(run: Run) -> pd.DataFrame:
    """Read the running statistics that each rank saved at the end.

    Columns: layer, depth (from 0), rank, channel, mean, var.

    Raises:
        ValueError: the run's script did not save them.
    """
    layers = []
    for rank in range(run.gpus):
        path = run.folder / f"batchnorm-{rank}.pt"
        if not path.exists():
            raise ValueError(f"{run.name} has no {path.name}: its script must call save_statistics")
        for depth, (name, (mean, var)) in enumerate(torch.load(path).items()):
            layer = pd.DataFrame({"mean": mean, "var": var}).rename_axis("channel").reset_index()
            layers.append(layer.assign(layer=name, depth=depth, rank=rank))
    return pd.concat(layers, ignore_index=True)


def rank_spread(table: pd.DataFrame) -> pd.DataFrame:
    """Measure how far apart the ranks' running means are, layer by layer.

    The distance between the largest and the smallest mean of the ranks is measured in standard
    deviations of the channel.

    Returns:
        layer, depth, spread (the median of the channels) and largest.
    """
    channels = table.groupby(["depth", "layer", "channel"])
    distance = channels["mean"].max() - channels["mean"].min()
    distance /= channels["var"].mean().pow(0.5)
    layers = distance.groupby(["depth", "layer"])
    return layers.agg(spread="median", largest="max").reset_index()
