"""Published training times of ResNet-50 and power of GPUs, with what follows from them.

The files training_times.csv and power.csv have the source of each row.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

HERE = Path(__file__).parent
IMAGENET_IMAGES = 1_281_167  # training images of ImageNet-1k (ILSVRC 2012)
EPOCHS = 90  # of the published training runs that report a number
PUE = 1.58  # a building's power over its computers': mean of Uptime Institute's survey, 2023
# A node's power over its GPUs'. Super Micro's node of MLPerf 4.0 drew 6.83 kW in total while 8 H100
# trained ResNet-50. They may draw 700 W each, so the factor is at least this.
HOST = 6.83 / (8 * 0.7)


def training_times() -> pd.DataFrame:
    """Return published training runs of ResNet-50 on ImageNet, the slowest first.

    Columns team, date, devices, device, minutes, epochs, images_per_s and source are as published
    (NaN: not published). Calculated: `device_hours`, devices × hours; `images_per_s_per_device`,
    from the images per second, or else from epochs × 1,281,167 images.
    """
    table = pd.read_csv(HERE / "training_times.csv")
    seconds = table["minutes"] * 60
    rate = table["images_per_s"].fillna(table["epochs"] * IMAGENET_IMAGES / seconds)
    return table.assign(
        device_hours=table["devices"] * table["minutes"] / 60,
        images_per_s_per_device=rate / table["devices"],
    ).sort_values("minutes", ascending=False, ignore_index=True)


def power() -> pd.DataFrame:
    """Return the watts of GPUs: device, max_w, idle_w, performance (A100 SXM: 1), source.

    Calculated: `performance_per_kw`, the performance per 1,000 W at full power.
    """
    table = pd.read_csv(HERE / "power.csv")
    return table.assign(performance_per_kw=table["performance"] / table["max_w"] * 1000)
