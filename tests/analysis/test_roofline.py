"""Roofline: costs counted by hand, ceilings measured here and recorded, and runs below them."""

import pandas as pd
import pytest

from course.analysis.roofline import (
    fusion_traffic,
    points,
    recorded_ceilings,
    step_cost,
)
from course.config import rung
from course.runs.recordings import recorded
from course.training import models
from labs.profiler.roofline_figures import plot_roofline
from trainspeed.rates import Ceilings

SMALL = {"data": "synthetic", "image_px": 64, "batch_size": 16, "model": "resnet18"}
CPU_CEILINGS = Ceilings("a CPU, 2 cores", {"fp32": 1e11}, 1e10, "measured")


@pytest.mark.slow
def test_cost_of_resnet50() -> None:
    forward = models.forward_gflop(models.create("resnet50", 1000), 224)
    stem = 2 * 112 * 112 * 64 * 3 * 49 / 1e9  # images need no gradient
    cost = step_cost(rung("amp", data="synthetic", batch_size=256))
    assert cost.flop / 1e9 == pytest.approx(3 * forward - stem, rel=0.001)
    # Reference values; the second is from a separate, coarser count.
    assert cost.flop / 1e9 == pytest.approx(24.3, rel=0.005)
    assert cost.bytes / 1e6 == pytest.approx(475, rel=0.05)


@pytest.mark.slow
def test_recorded_runs_are_below_their_ceilings() -> None:
    runs, limits = recorded("nvidia-h100"), recorded_ceilings("nvidia-h100")
    runs = runs[(runs["batch_size"] == 256) & runs["rung"].isin(["device", "amp", "channels_last"])]
    table = points(runs, limits)
    assert 3 < len(table) == len(runs[(runs["status"] == "ok") & (runs["device"] == "cuda")])
    assert set(table["precision"]) == {"fp32", "tf32", "bf16", "fp16"}
    assert table["share"].between(0.3, 0.8).all()
    # Compute bounds ResNet-50 without Tensor Cores, and memory with them.
    assert ((table["bound"] == "compute") == (table["precision"] == "fp32")).all()
    picture = plot_roofline(limits, table)
    (axes,), (legend,) = picture.axes, picture.legends
    assert "NVIDIA H100 80GB HBM3 (recorded" in axes.get_title(loc="left")
    words = [text.get_text() for text in legend.get_texts()]
    assert {"memory: 3.02 TB/s", "tf32: 365 TFLOP/s", "bf16: 673 TFLOP/s"} <= set(words)
    assert "channels_last, fp16:\n73% of the memory bound" in words


def cpu_row(**changes) -> dict:
    config = vars(rung("baseline", **SMALL))
    row = {"status": "ok", "machine": "a CPU, 2 cores", "images_per_s": 10.0, "config": config}
    return row | changes


def test_point_by_hand() -> None:
    (row,) = points(pd.DataFrame([cpu_row()]), CPU_CEILINGS).to_dict("records")
    cost = step_cost(rung("baseline", **SMALL))
    assert row["flop_per_s"] == 10 * cost.flop
    assert row["compute_images_per_s"] == pytest.approx(1e11 / cost.flop)
    assert row["memory_images_per_s"] == pytest.approx(1e10 / cost.bytes)
    assert row["bound"] == "compute" and row["share"] == pytest.approx(10 * cost.flop / 1e11)


def test_fusion_traffic_by_hand() -> None:
    # y = relu(a + b): 3 + 2 movements, of which b's is left; ReLU's backward: 3, or its mask's.
    moved = {"convolution": 10.0, "add_": 3.0, "add": 0.0, "relu_": 2.0, "threshold_backward": 3.0}
    sums = fusion_traffic(pd.DataFrame({"megabytes": moved})).sum()
    assert sums.to_dict() == pytest.approx({"eager": 18, "least": 11, "most": 12})
