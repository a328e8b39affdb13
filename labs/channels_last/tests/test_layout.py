"""Memory layout: addresses in real memory, layouts and copies of operators, figures."""

import pytest
import torch
from torch import nn

from course.analysis import read_trace
from course.runs.recordings import trace_path
from course.training.precision import channels_last
from labs import channels_last as lab
from labs.channels_last.strides import CONVERSIONS, addresses, batch_norm_by_channels
from trainspeed.traces import tables as trace_tables

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

LAYOUTS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
MEMORY = {"NCHW": "abcdefgh" * 3, "NHWC": "aaabbbcccdddeeefffggghhh"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_addresses_and_their_figure(layout: str) -> None:
    tensor = torch.randn(2, 3, 2, 4).to(memory_format=LAYOUTS[layout])
    memory = tensor.as_strided((tensor.numel(),), (1,))
    table = addresses(tensor)
    assert list(table["address"]) == list(range(tensor.numel()))
    for row in table.itertuples():
        assert tensor[row.n, row.c, row.h, row.w] == memory[row.address]
    picture = lab.plot_strides({layout: tensor})
    texts = [text.get_text() for text in picture.axes[0].texts]
    assert f"{layout}: stride of (n, c, h, w) = {tensor.stride()}" in texts
    letters = "".join(text for text in texts if len(text) == 1)
    assert letters[48:] == MEMORY[layout] + MEMORY[layout].upper()


def network(on: bool = True) -> nn.Module:
    """Return a 1 × 1 convolution between two larger ones, as in a ResNet's block."""
    layers = [nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 1)]
    # The last ReLU's backward converts the gradient to the layout of the activations.
    return channels_last(nn.Sequential(*layers, nn.Conv2d(16, 8, 3), nn.ReLU()), on=on)


def images(on: bool = True) -> torch.Tensor:
    return channels_last(torch.randn(2, 3, 9, 9), on=on)


def step(model: nn.Module, batch: torch.Tensor) -> None:
    model(batch).square().mean().backward()


@pytest.mark.parametrize("on, layout", [(True, "NHWC"), (False, "NCHW")])
def test_layout_of_convolutions(on: bool, layout: str) -> None:
    table = lab.operator_layouts(lambda: step(network(on), images(on)))
    table = table[table["operator"].str.startswith("convolution")]
    assert set(table["phase"]) == {"forward", "backward"}
    assert set(table["inputs"]) == {layout, f"{layout}, either"}
    assert table.loc[table["phase"] == "forward", "calls"].sum() == 3


@pytest.mark.parametrize(
    "model_on, images_on, copies",
    [
        (True, True, {}),
        (False, True, {(8, 3, 3, 3): 1, (8, 16, 3, 3): 1}),  # the weights of larger convolutions
        (True, False, {(2, 3, 9, 9): 1}),
    ],
)
def test_conversions(model_on: bool, images_on: bool, copies: dict[tuple, int]) -> None:
    table = lab.conversions(network(model_on), images(images_on))
    assert dict(zip(table["shape"], table["copies"])) == copies
    numbers = sum(torch.Size(shape).numel() * count for shape, count in copies.items())
    assert table["megabytes"].sum() == pytest.approx(numbers * 4 / 1e6)


def test_backward_converts_again() -> None:
    table = lab.conversions(step, network(on=False), images())
    assert table.groupby("operator")["copies"].sum()["convolution_backward"] >= 2


def test_time_by_part_in_recorded_traces() -> None:
    rungs = ("amp", "channels_last")
    traces = {name: read_trace(trace_path("nvidia-h100", name)) for name in rungs}
    parts = lab.time_by_part("nvidia-h100", *rungs)
    total = traces["amp"].kernels["duration_s"].sum() * 1e3
    assert parts["amp"].sum() == pytest.approx(total)
    conversions = trace_tables.layout_kernels(traces["amp"])
    assert parts.at[CONVERSIONS, "amp"] == pytest.approx(1e3 * conversions["seconds"].sum())
    # The notebooks' prose: BatchNorm saves most, above all with few channels.
    saved = parts["amp"] - parts["channels_last"]
    assert saved["BatchNorm"] > 2 * saved[CONVERSIONS] > saved["all else"]
    ms = batch_norm_by_channels("nvidia-h100", *rungs)
    ratio = ms["amp"] / ms["channels_last"]
    assert ratio[64] > 5 and ratio[64] > ratio[128] > ratio[512]
    (axes,) = lab.plot_time_by_part("nvidia-h100", *rungs).axes
    widths = sum(container[0].get_width() for container in axes.containers)
    assert widths == pytest.approx(total)
