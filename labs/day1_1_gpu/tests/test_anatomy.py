"""A step's memory by part: sizes calculated by hand, and compared with the predicted peak."""

import pandas as pd
import pytest
from torch import nn

from course.config import GIB, rung
from course.training import models
from course.training.memory_prediction import predict
from labs.day1_1_gpu.figures import plot_memory_by_part
from labs.day1_1_gpu.memory_parts import KINDS, forward_peaks, memory_by_part

SMALL = {"data": "synthetic", "image_px": 64, "batch_size": 16, "model": "resnet18"}
LARGE = {"data": "synthetic", "batch_size": 64}  # ResNet-50 at 224 px
PARTS = ["stem", "layer1", "layer2", "layer3", "layer4", "head"]


def by_kind(name: str = "device", **changes) -> pd.Series:
    """Return GiB by kind of a small ResNet-18."""
    return memory_by_part(rung(name, **SMALL | changes)).groupby("kind")["gib"].sum()


@pytest.fixture(scope="module")
def fp32() -> pd.Series:
    return by_kind()


def test_lasting_tensors_have_four_bytes_per_parameter(fp32: pd.Series) -> None:
    network = models.create("resnet18", 1000)
    parameters = models.parameter_count(network) * 4 / GIB
    buffers = sum(buffer.nbytes for buffer in network.buffers()) / GIB
    assert fp32["weights"] == pytest.approx(parameters + buffers)
    assert fp32["gradients"] == pytest.approx(parameters)
    assert fp32["optimizer state"] == pytest.approx(parameters)  # SGD's momentum
    assert fp32["weight copies"] == 0
    assert by_kind(momentum=0.0)["optimizer state"] == 0


def test_activations_and_batch_grow_with_the_batch(fp32: pd.Series) -> None:
    double = by_kind(batch_size=32)
    for kind in KINDS:
        factor = 2 if kind in ("activations", "batch") else 1
        # BatchNorm saves a mean and a deviation per channel, at any batch size.
        assert double[kind] == pytest.approx(factor * fp32[kind], rel=1e-3), kind


def test_first_activation_by_hand() -> None:
    table = memory_by_part(rung("device", **SMALL))
    assert list(dict.fromkeys(table["part"])) == PARTS and len(table) == len(PARTS) * len(KINDS)
    gib = table.set_index(["part", "kind"])["gib"]
    pixels, pooled = 16 * 64 * 32 * 32, 16 * 64 * 16 * 16
    # Saved: the convolution's output (by BatchNorm), ReLU's output (by pooling), the 8-byte places
    # of the maxima, and BatchNorm's statistics. layer1 saves the output of pooling.
    expected = 4 * 2 * pixels + 8 * pooled + 4 * 2 * 64
    assert gib["stem", "activations"] * GIB == pytest.approx(expected, rel=1e-6)
    labels = 16 * 8
    assert gib["stem", "batch"] * GIB == 16 * 3 * 64 * 64 * 4 + labels


def test_half_precision_halves_activations_and_copies_the_weights(fp32: pd.Series) -> None:
    half = by_kind("amp")
    # Places of maxima have 8 bytes in any precision, and the batch is converted.
    assert 0.5 < half["activations"] / fp32["activations"] < 0.65
    assert half["weights"] == fp32["weights"] and half["gradients"] == fp32["gradients"]
    network = models.create("resnet18", 1000)
    layers = [part for part in network.modules() if isinstance(part, nn.Conv2d | nn.Linear)]
    copies = 2 * sum(layer.weight.numel() for layer in layers) / GIB
    assert half["weight copies"] == pytest.approx(copies, rel=0.001)


@pytest.mark.slow
def test_agrees_with_the_predicted_peak() -> None:
    config = rung("channels_last", **LARGE)
    gib, peak = memory_by_part(config).groupby("kind")["gib"].sum(), predict(config)
    assert gib["weights"] == pytest.approx(peak.weights_gib)
    assert gib["optimizer state"] == pytest.approx(peak.optimizer_gib)
    saved = gib["activations"] + gib["weight copies"]
    assert saved == pytest.approx(peak.activations_gib, rel=0.01)
    # The sum has all gradients; the peak has the work space of one layer's backward instead.
    assert gib.sum() == pytest.approx(peak.peak_gib, rel=0.03)


@pytest.mark.slow
def test_no_grad_frees_most_of_the_forward_pass() -> None:
    config = rung("device", **LARGE)
    peaks = forward_peaks(config)
    assert peaks.no_grad_gib < 0.2 * peaks.grad_gib
    gib = memory_by_part(config).groupby("kind")["gib"].sum()
    saved = peaks.grad_gib - gib["weights"] - gib["batch"]
    assert saved == pytest.approx(gib["activations"], rel=0.01)


@pytest.mark.slow
def test_figure_has_every_part_and_kind() -> None:
    table = memory_by_part(rung("amp", **SMALL))
    picture = plot_memory_by_part(table)
    assert [text.get_text() for text in picture.axes[0].get_yticklabels()] == PARTS
    assert [text.get_text() for text in picture.legends[0].get_texts()] == list(KINDS)
    totals = [float(text.get_text().replace(",", "")) for text in picture.axes[2].texts]
    assert sum(totals) == pytest.approx(table["gib"].sum() * 1024, rel=0.01)


def test_a_rejected_step_names_what_to_raise() -> None:
    with pytest.raises(ValueError, match="resnet18 cannot be trained.*Raise batch_size"):
        memory_by_part(rung("device", **{**SMALL, "batch_size": 1, "image_px": 32}))
