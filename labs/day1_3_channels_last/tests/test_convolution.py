"""One convolution in two layouts: timed on this machine, and as recorded on an H100."""

import pandas as pd
import pytest
import torch

from course.analysis.roofline.bounds import recorded_ceilings
from labs import day1_3_channels_last as lab
from labs.day1_3_channels_last import convolution

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

CPU = torch.device("cpu")


@pytest.mark.slow
def test_convolution_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "LONGEST_S", 0.0)  # as few rounds as possible
    layouts = set()
    conv2d = torch.nn.functional.conv2d

    def watch(images: torch.Tensor, weights: torch.Tensor, **options: int) -> torch.Tensor:
        assert images.requires_grad and weights.requires_grad
        layouts.add((lab.layout(images), lab.layout(weights)))
        return conv2d(images, weights, **options)

    monkeypatch.setattr(torch.nn.functional, "conv2d", watch)
    table = lab.convolution_times(CPU, [60, 64])
    assert layouts == {("NCHW", "NCHW"), ("NHWC", "NHWC")}
    assert list(table["channels"]) == [60, 60, 64, 64]
    assert list(table["layout"]) == ["NCHW", "NHWC"] * 2
    assert table["ms"].between(table["ms_q1"], table["ms_q3"]).all()
    # Nine multiplications and additions for each pixel and pair of channels, three times.
    flop = 3 * 18 * table["channels"] ** 2 * table["image_px"] ** 2 * table["batch_size"]
    assert (flop / table["ms"] / 1e9).tolist() == pytest.approx(table["tflop_per_s"].tolist())
    (axes,) = lab.plot_convolution_times(table).axes
    title = axes.get_title(loc="left")
    assert "cores, one thread\n" in title and "forward and backward, fp32, batch 4, 28" in title
    assert axes.get_ylabel().endswith("FLOP/s: median, quartiles")
    with pytest.raises(ValueError, match="rows must agree in machine, precision"):
        lab.plot_convolution_times(pd.concat([table, lab.recorded_convolution("nvidia-h100")]))


def test_recorded_convolution() -> None:
    table = lab.recorded_convolution("nvidia-h100", "bf16")
    speed = table.pivot_table("tflop_per_s", "channels", "layout")
    assert speed.loc[64, "NHWC"] > 2 * speed.loc[64, "NCHW"]
    assert speed.loc[64, "NHWC"] > 3 * speed.loc[65, "NHWC"]
    (axes,) = lab.plot_convolution_times(table).axes
    title = axes.get_title(loc="left")
    assert "NVIDIA H100" in title and "convolution, forward, bf16, batch 64, 56 px" in title
    tf32 = lab.recorded_convolution("nvidia-h100", "tf32")["tflop_per_s"].max() * 1e12
    assert tf32 > 2 * recorded_ceilings("nvidia-h100").flop_per_s["fp32"]


def test_impossible_requests() -> None:
    with pytest.raises(ValueError, match="no convolution in 'fp32'.*tf32, bf16, fp16"):
        lab.recorded_convolution("nvidia-h100", "fp32")
    with pytest.raises(ValueError, match="give counts of 1 or more"):
        lab.convolution_times(CPU, [8, 0])
    with pytest.raises(ValueError, match="precision='int8': choose fp32"):
        lab.convolution_times(CPU, [8], "int8")
