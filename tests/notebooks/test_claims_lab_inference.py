"""The lab of inference says what is computed, and what an H100 measured."""

from collections.abc import Iterator

import pytest
import torch
from claims import text_of
from torch import nn

from course.topics import inference
from course.training import models

TEXT = text_of("lab_inference")


def said(words: str) -> None:
    assert words in TEXT, words


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two that share their cores with other tests wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def net() -> nn.Module:
    """Trained for half as long as in the lab."""
    return inference.train(steps=128)


@pytest.mark.slow
def test_a_forgotten_eval(net: nn.Module) -> None:
    table = inference.forgotten(net, batches=(256, 1), images=512).set_index("batch")
    whole = inference.top1(net, 512)
    said("With 256 images at once hardly anybody would notice")
    assert table.loc[256, "eval() forgotten"] > 0.8 * whole
    said("Alone, an image is normalised by itself, and what told it from others is gone.")
    assert table.loc[1, "eval() forgotten"] < 0.3 * whole
    said("`eval()` came late, and does not help: each forward pass in training moved the averages.")
    assert table.loc[1, "eval() after that"] < 0.8 * whole


@pytest.mark.slow
def test_bits(net: nn.Module) -> None:
    table = inference.by_bits(net, bits=(8, 6, 4, 3), images=512)
    kept = table.assign(kept=table["top1"] / table["fp32"]).pivot(
        index="bits", columns="scales", values="kept"
    )
    said("Eight bits cost nothing that shows, six hardly anything. Then it falls fast")
    assert kept.loc[8].min() > 0.98 and kept.loc[6].min() > 0.9 and kept.loc[3].max() < 0.7
    said("a scale for each channel holds out a little longer")
    assert kept.loc[4, "a channel"] > kept.loc[4, "a tensor"]


@pytest.mark.slow
def test_calibration(net: nn.Module) -> None:
    seen = inference.by_calibration(net, images=512)
    said("Eight training crops do as well as 512.")
    assert abs(seen["8 training crops"] - seen["512 training crops"]) < 0.02
    said("Dark ones promise small numbers, and all that is larger is cut off.")
    said("One wild number does the opposite: everything else shares a few steps.")
    spoiled = ["the same, ten times as dark", "one number a thousand times too large"]
    assert (seen[spoiled] < 0.6 * seen["fp32"]).all()


def test_what_is_counted() -> None:
    said("Seven convolutions learn the crops of lab 3.3, 16 photographs to tell apart")
    small = models.create("resnet8_patches", 16)
    assert sum(isinstance(part, nn.Conv2d) for part in small.modules()) == 7
    said("ResNet-50 has 53 convolutions")
    with torch.device("meta"):
        large = models.create("resnet50", 1000)
    assert sum(isinstance(part, nn.Conv2d) for part in large.modules()) == 53
    said("at least 90 % of all the images a second")
    assert inference.latency.NEARLY == 0.9
