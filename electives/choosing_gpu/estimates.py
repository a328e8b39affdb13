"""Estimated speeds of GPUs, from data sheets and a recorded run of an H100."""

from __future__ import annotations

import pandas as pd

from course import recorded, rung
from course.analysis import roofline
from trainspeed import gpus

RUNG, BATCH, MEASURED = "channels_last", 256, "H100"


def recorded_speed(gpu: str) -> float:
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
    speed = ratio * recorded_speed(MEASURED)
    flop = roofline.step_cost(rung(RUNG, batch_size=BATCH)).flop
    share = speed * flop / (1e12 * table["fp16"])
    columns = ["architecture", "year", "memory_gb", "tb_per_s", "fp16", "watts"]
    table = table[columns].assign(images_per_s=speed, fp16_share=share)
    return table.sort_values("images_per_s", ascending=False)
