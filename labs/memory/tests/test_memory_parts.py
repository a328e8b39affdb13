"""A step's memory by part: sizes calculated by hand, and compared with the predicted peak."""

import pandas as pd
import pytest

from course.config import GIB, rung
from course.training import models
from course.training.memory_prediction import predict_memory
from labs.memory.figures import plot_memory_by_part
from labs.memory.memory_parts import KINDS, memory_by_part

SMALL = {"data": "synthetic", "image_px": 64, "batch_size": 16, "model": "resnet18"}


def by_kind(name: str = "device", **changes) -> pd.Series:
    """Return GiB by kind of a small ResNet-18."""
    return memory_by_part(rung(name, **SMALL | changes)).groupby("kind")["gib"].sum()


def test_sizes_by_hand() -> None:
    table = memory_by_part(rung("device", **SMALL))
    gib = table.set_index(["part", "kind"])["gib"]
    pixels, pooled = 16 * 64 * 32 * 32, 16 * 64 * 16 * 16
    # Saved: the convolution's output (by BatchNorm), ReLU's output (by pooling), the 8-byte places
    # of the maxima, and BatchNorm's statistics. layer1 saves the output of pooling.
    expected = 4 * 2 * pixels + 8 * pooled + 4 * 2 * 64
    assert gib["stem", "activations"] * GIB == pytest.approx(expected, rel=1e-6)
    labels = 16 * 8
    assert gib["stem", "batch"] * GIB == 16 * 3 * 64 * 64 * 4 + labels
    parameters = models.parameter_count(models.create("resnet18", 1000)) * 4 / GIB
    total = table.groupby("kind")["gib"].sum()
    assert total["gradients"] == pytest.approx(parameters)
    assert total["optimizer state"] == pytest.approx(parameters)  # SGD's momentum
    assert by_kind(momentum=0.0)["optimizer state"] == 0


def test_activations_grow_with_the_batch_and_shrink_with_the_precision() -> None:
    fp32, double, half = by_kind(), by_kind(batch_size=32), by_kind("amp")
    for kind in KINDS:
        factor = 2 if kind in ("activations", "batch") else 1
        # BatchNorm saves a mean and a deviation per channel, at any batch size.
        assert double[kind] == pytest.approx(factor * fp32[kind], rel=1e-3), kind
    # Places of maxima have 8 bytes in any precision, and the batch is converted.
    assert 0.5 < half["activations"] / fp32["activations"] < 0.65
    assert half["weights"] == fp32["weights"] and half["gradients"] == fp32["gradients"]
    assert half["weight copies"] == pytest.approx(half["gradients"] / 2, rel=0.01)


@pytest.mark.slow
def test_agrees_with_the_predicted_peak() -> None:
    config = rung("channels_last", data="synthetic", batch_size=64)
    table, peak = memory_by_part(config), predict_memory(config)
    gib = table.groupby("kind")["gib"].sum()
    assert gib["weights"] == pytest.approx(peak.weights_gib)
    assert gib["optimizer state"] == pytest.approx(peak.optimizer_gib)
    saved = gib["activations"] + gib["weight copies"]
    assert saved == pytest.approx(peak.activations_gib, rel=0.01)
    # The sum has all gradients; the peak has the work space of one layer's backward instead.
    assert gib.sum() == pytest.approx(peak.peak_gib, rel=0.03)
    texts = [text.get_text() for text in plot_memory_by_part(config).axes[2].texts]
    assert sum(map(float, texts)) == pytest.approx(gib.sum(), rel=0.01)
