"""Estimated speeds of GPUs, from data sheets and a recorded run of an H100."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from course import recorded, rung
from course.analysis import roofline
from electives.choosing_gpu.costs import Cost
from trainspeed import gpus

RUNG, BATCH, MEASURED, OTHER = "channels_last", 256, "H100", "H200"


def _recorded_speed(gpu: str) -> float:
    """Return the images per second that a GPU was recorded with, in bf16 and channels_last."""
    runs = recorded(f"nvidia-{gpu.lower()}")
    wanted = runs["rung"].eq(RUNG) & runs["batch_size"].eq(BATCH) & runs["precision"].eq("bf16")
    return float(runs.loc[wanted & runs["gpus"].eq(1), "images_per_s"].median())


def estimate_speeds() -> pd.DataFrame:
    """Return GPUs with estimated images per second of ResNet-50's training, the fastest first.

    The estimate is the H100's recorded speed × the ratio of memory bandwidths. GPUs without
    published watts or without Tensor Cores are left out.

    Columns: architecture, year, memory_gb, tb_per_s, fp16 (TFLOP/s), watts, images_per_s, and
    fp16_share: the part of `fp16` that this speed would use.
    """
    table = pd.concat([gpus.summary(), gpus.cards()])
    table = table[table["watts"].notna() & table["architecture"].ne("Pascal")]
    ratio = table["tb_per_s"] / table.loc[MEASURED, "tb_per_s"]
    speed = ratio * _recorded_speed(MEASURED)
    flop = roofline.step_cost(rung(RUNG, batch_size=BATCH)).flop
    share = speed * flop / (1e12 * table["fp16"])
    columns = ["architecture", "year", "memory_gb", "tb_per_s", "fp16", "watts"]
    table = table[columns].assign(images_per_s=speed, fp16_share=share)
    return table.sort_values("images_per_s", ascending=False)


def compare_estimate() -> pd.Series:
    """Compare the estimate of an H200 with its recorded speed: bandwidth and speed, × the H100."""
    table = gpus.summary()
    return pd.Series(
        {
            "bandwidth": table.loc[OTHER, "tb_per_s"] / table.loc[MEASURED, "tb_per_s"],
            "recorded speed": _recorded_speed(OTHER) / _recorded_speed(MEASURED),
        },
        name=f"{OTHER}, times an {MEASURED}",
    )


def compare_costs(
    prices: Mapping[str, object], hours: float, kwh_price: float, function: Cost
) -> pd.DataFrame | str:
    """Return what the GPUs with a price cost, the cheapest first.

    Columns: memory_gb, watts, images_per_s, images_per_joule, euros_per_million, electricity_share
    (the part of these euros that pays for electricity), and price.

    Args:
        prices: euros by GPU; other values than numbers are not filled in.
        hours, kwh_price, function: as for `costs.cost`.

    Raises:
        ValueError: a GPU is unknown, a price or the hours are 0 or less, or kwh_price is negative.
    """
    speeds = estimate_speeds()
    if unknown := [*prices.keys() - set(speeds.index)]:
        raise ValueError(f"unknown: {', '.join(unknown)}. Choose from {', '.join(speeds.index)}")
    filled = {gpu: price for gpu, price in prices.items() if isinstance(price, int | float)}
    for name, value in (*filled.items(), ("hours", hours)):
        if value <= 0:
            raise ValueError(f"{name}: {value}. Prices and hours must be above 0")
    if kwh_price < 0:
        raise ValueError(f"kwh_price={kwh_price}: expected 0 or more")
    if not filled:
        return "Replace the dots by prices that you find, then run this cell again."
    table = speeds.loc[[*filled], ["memory_gb", "watts", "images_per_s"]]
    rows = [
        function(row.images_per_s, row.watts, filled[gpu], hours, kwh_price)
        for gpu, row in table.iterrows()
    ]
    table[["images_per_joule", "euros_per_million"]] = rows
    electricity = kwh_price / (3.6 * table["images_per_joule"])  # 3.6 MJ are a kWh
    table["electricity_share"] = electricity / table["euros_per_million"]
    return table.assign(price=pd.Series(filled)).sort_values("euros_per_million")
