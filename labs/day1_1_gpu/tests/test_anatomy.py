"""Anatomy of memory: sizes that can be computed by hand, and the prediction as a second opinion."""

import pandas as pd
import pytest
import torch

from course.config import GIB, rung
from course.training import models
from course.training.memory_prediction import predict
from labs.day1_1_gpu.figures import plot_anatomy as draw
from labs.day1_1_gpu.memory_parts import KINDS, anatomy, kept_without_grad

SMALL = {"data": "synthetic", "image_px": 64, "batch_size": 16, "model": "resnet18"}
LARGE = {"data": "synthetic", "batch_size": 64}  # ResNet-50 at 224 px
PARTS = ["stem", "layer1", "layer2", "layer3", "layer4", "head"]


def by_kind(**changes) -> pd.Series:
    """GiB by kind of a small ResNet-18, on the rung `name`."""
    config = rung(changes.pop("name", "device"), **{**SMALL, **changes})
    return anatomy(config).groupby("kind")["gib"].sum()


@pytest.fixture(scope="module")
def fp32() -> pd.Series:
    return by_kind()


@pytest.mark.slow
@pytest.mark.parametrize("model", ["resnet18", "resnet50"])
def test_weights_are_four_bytes_a_parameter_and_so_is_what_goes_with_each(model):
    network = models.create(model, 1000)
    parameters = models.parameter_count(network) * 4 / GIB
    buffers = sum(buffer.nbytes for buffer in network.buffers()) / GIB
    table = anatomy(rung("device", **{**SMALL, "model": model}))
    assert list(dict.fromkeys(table["part"])) == PARTS
    assert set(table["kind"]) == set(KINDS) and len(table) == len(PARTS) * len(KINDS)
    found = table.groupby("kind")["gib"].sum()
    assert found["weights"] == pytest.approx(parameters + buffers, rel=1e-9)
    assert found["gradients"] == pytest.approx(parameters, rel=1e-9)
    assert found["optimizer state"] == pytest.approx(parameters, rel=1e-9)  # SGD's momentum
    assert found["weight copies"] == 0


def test_sgd_without_momentum_keeps_nothing():
    assert by_kind(momentum=0.0)["optimizer state"] == 0


def test_activations_and_batch_grow_with_the_batch_and_nothing_else_does(fp32):
    double = by_kind(batch_size=32)
    for kind in KINDS:
        # BatchNorm keeps a mean and a deviation of each channel, at any batch.
        grows = 2 if kind in ("activations", "batch") else 1
        assert double[kind] == pytest.approx(grows * fp32[kind], rel=1e-3), kind


def test_first_activation_by_hand():
    table = anatomy(rung("device", **SMALL)).set_index(["part", "kind"])["gib"]
    pixels, pooled = 16 * 64 * 32 * 32, 16 * 64 * 16 * 16
    # For backward: the convolution's output (BatchNorm), its rectified form (pooling), the 8-byte
    # places of the maxima, and BatchNorm's statistics. What pooling made is kept by layer1.
    expected = 4 * 2 * pixels + 8 * pooled + 4 * 2 * 64
    assert table["stem", "activations"] * GIB == pytest.approx(expected, rel=1e-6)
    labels = 16 * 8
    assert table["stem", "batch"] * GIB == 16 * 3 * 64 * 64 * 4 + labels


def test_half_precision_halves_activations_and_copies_the_weights(fp32):
    half = by_kind(name="amp")
    # Places of maxima stay, and the batch is converted.
    assert 0.5 < half["activations"] / fp32["activations"] < 0.65
    for kind in ("weights", "gradients", "optimizer state"):
        assert half[kind] == fp32[kind]
    network = models.create("resnet18", 1000)
    copied = [
        each.weight
        for each in network.modules()
        if hasattr(each, "weight") and not isinstance(each, torch.nn.BatchNorm2d)
    ]
    sizes = 2 * sum(weight.numel() for weight in copied) / GIB
    assert half["weight copies"] == pytest.approx(sizes, rel=0.001)


def test_layout_changes_no_activation_and_doubles_a_synthetic_batch(fp32):
    nhwc = by_kind(channels_last=True)
    assert nhwc["activations"] == pytest.approx(fp32["activations"], rel=1e-6)
    assert nhwc["weights"] == fp32["weights"]
    assert nhwc["batch"] == pytest.approx(2 * fp32["batch"], rel=0.001)  # beside its copy


@pytest.mark.slow
@pytest.mark.parametrize("name", ["device", "channels_last"])
def test_agrees_with_the_prediction_of_the_peak(name):
    config = rung(name, **LARGE)
    held, told = anatomy(config).groupby("kind")["gib"].sum(), predict(config)
    assert held["weights"] == pytest.approx(told.weights_gib)
    assert held["optimizer state"] == pytest.approx(told.optimizer_gib)
    kept = held["activations"] + held["weight copies"]
    assert kept == pytest.approx(told.activations_gib, rel=0.01)
    # All gradients are in the one, and what backward needs for a layer in the other.
    assert held.sum() == pytest.approx(told.peak_gib, rel=0.03)
    assert held["gradients"] > 5 * told.gradients_gib


@pytest.mark.slow
def test_no_grad_frees_most_of_the_forward_pass():
    config = rung("device", **LARGE)
    found = kept_without_grad(config)
    assert found.no_grad_gib < 0.2 * found.grad_gib
    held = anatomy(config).groupby("kind")["gib"].sum()
    kept = found.grad_gib - held["weights"] - held["batch"]  # no step was made, so no momentum
    assert kept == pytest.approx(held["activations"], rel=0.01)


@pytest.mark.slow
def test_picture_labels_every_part_and_kind():
    picture = draw(anatomy(rung("amp", **SMALL)))
    labels = [text.get_text() for text in picture.axes[0].get_yticklabels()]
    assert labels == PARTS
    assert [text.get_text() for text in picture.legends[0].get_texts()] == list(KINDS)
    titles = [axes.get_title(loc="left") for axes in picture.axes]
    assert titles == ["grows with the batch (MiB)", "does not grow (MiB)", "in all (MiB)"]
    totals = [float(text.get_text().replace(",", "")) for text in picture.axes[2].texts]
    assert sum(totals) == pytest.approx(by_kind(name="amp").sum() * 1024, rel=0.01)


def test_a_step_that_is_refused_says_what_to_raise():
    with pytest.raises(ValueError, match="resnet18 cannot be trained.*Raise batch_size"):
        anatomy(rung("device", **{**SMALL, "batch_size": 1, "image_px": 32}))
