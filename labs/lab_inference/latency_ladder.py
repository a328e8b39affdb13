"""Each way to answer after the other: how long it takes, and how far its scores are off."""

from __future__ import annotations

import gc
import warnings
from time import perf_counter
from typing import Any

import pandas as pd
import torch
from torch import nn

from labs.day3_4_compile.compiler_output import anew, told
from labs.lab_inference.fold import Fold, fold
from labs.lab_inference.latency import Latencies, latencies, rates, timed
from labs.lab_inference.variants import LADDER, Way, images_for, ready


def ladder(
    model: nn.Module,
    batches: tuple[int, ...] = (1, 64),
    px: int = 32,
    budget_s: float = 0.3,
    fold_by: Fold = fold,
    time_by: Latencies = latencies,
) -> pd.DataFrame:
    """The ways of LADDER that this device has, each with the number of images at once.

    Columns: way, batch, p50_s, p99_s, calls, images_per_s, error (of scores, relative to fp32's
    largest), made_s (until it could answer, where it is compiled), faster (than fp32). Where C++
    cannot be compiled, it says so and leaves that way out.
    """
    rows = []
    for batch in batches:
        images = images_for(model, batch, px)
        right = ready(model, images, Way())().double().cpu()
        for name, way in LADDER.items():
            if way.graph and images.device.type != "cuda":
                continue
            how = {"fold_by": fold_by, "time_by": time_by}
            try:
                row = of_way(model, images, way, right, budget_s, **how)
            except RuntimeError as error:
                if not way.compiled:
                    raise
                warnings.warn(str(error), stacklevel=2)
                continue
            rows.append({"way": name, "batch": batch} | row)
    return compared(rates(pd.DataFrame(rows)))


def compared(table: pd.DataFrame) -> pd.DataFrame:
    """The table with `faster`: how many times as fast as fp32 each way is, with its batch."""
    first = table[table["way"] == "fp32"].set_index("batch")["p50_s"]
    return table.assign(faster=table["batch"].map(first) / table["p50_s"])


def of_way(
    model: nn.Module,
    images: torch.Tensor,
    way: Way,
    right: torch.Tensor | None,
    budget_s: float,
    fold_by: Fold = fold,
    time_by: Latencies = latencies,
) -> dict[str, Any]:
    """How long one way takes, and how far its scores are from the right ones."""
    with anew(), told():
        began = perf_counter()
        call = ready(model, images, way, fold_by)
        scores = call().double().cpu()
        row: dict[str, Any] = {"made_s": perf_counter() - began} if way.compiled else {}
        if right is not None:
            row["error"] = float((scores - right).abs().max() / right.abs().max())
        row |= timed(call, images.device, budget_s, time_by)
    del call
    gc.collect()
    if images.device.type == "cuda":
        torch.cuda.empty_cache()
    return row
