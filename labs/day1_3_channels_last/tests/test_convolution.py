"""One convolution in two layouts: timed on this machine, and as it was recorded on an H100."""

import time

import pandas as pd
import pytest
import torch

from course.analysis.roofline.timing import number_format
from labs.day1_3_channels_last import convolution
from labs.day1_3_channels_last.convolution import convolution_times, recorded_convolution
from labs.day1_3_channels_last.figures import plot_convolution_times as draw

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def timed() -> pd.DataFrame:
    begin = time.perf_counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "SOON_S", 0.0)  # no more rounds than it needs
        table = convolution_times(CPU)
    assert time.perf_counter() - begin < 30  # seven seconds where the machine is idle
    return table


@pytest.mark.slow
def test_every_case_is_timed_in_both_layouts(timed):
    assert list(timed["channels"]) == [count for count in range(60, 69) for _ in range(2)]
    assert list(timed["layout"]) == ["NCHW", "NHWC"] * 9
    assert (timed["ms_q1"] <= timed["ms"]).all() and (timed["ms"] <= timed["ms_q3"]).all()
    # FLOP: nine multiplications and additions for each pixel and pair of channels, three times.
    flop = 3 * 18 * timed["channels"] ** 2 * timed["image_px"] ** 2 * timed["batch_size"]
    assert (flop / (timed["ms"] / 1e3) / 1e12).tolist() == pytest.approx(timed["tflop_per_s"])
    (machine,) = set(timed["machine"])
    assert machine.endswith("cores, one thread")


@pytest.mark.parametrize("layout, order", [("NCHW", 0), ("NHWC", torch.channels_last)])
def test_what_is_timed_has_the_layout_and_computes_gradients(layout, order, monkeypatch):
    seen = []
    real = torch.nn.functional.conv2d

    def watched(images: torch.Tensor, weights: torch.Tensor, **rest: int) -> torch.Tensor:
        seen.append((images, weights))
        return real(images, weights, **rest)

    monkeypatch.setattr(torch.nn.functional, "conv2d", watched)
    convolution._convolution(CPU, torch.float32, 12, layout)()
    ((images, weights),) = seen
    assert images.shape == (4, 12, 28, 28) and weights.shape == (12, 12, 3, 3)
    for tensor in (images, weights):
        assert tensor.is_contiguous(memory_format=order or torch.contiguous_format)
        assert tensor.requires_grad


def test_recorded_multiples_of_eight_gain_by_channels_last():
    table = recorded_convolution("nvidia-h100", "bf16")
    speed = table.pivot_table("tflop_per_s", "channels", "layout")
    assert speed.loc[64, "NHWC"] > 2 * speed.loc[64, "NCHW"]
    assert speed.loc[64, "NHWC"] > 3 * speed.loc[65, "NHWC"]
    assert "NVIDIA H100" in table["machine"][0] and "recorded" in table["machine"][0]


def test_recorded_float32_is_tf32():
    from course.analysis.roofline.bounds import recorded_ceilings

    table = recorded_convolution("nvidia-h100", "tf32")
    assert (
        table["tflop_per_s"].max() * 1e12 > 2 * recorded_ceilings("nvidia-h100").flop_per_s["fp32"]
    )
    with pytest.raises(ValueError, match="no convolution in 'fp32'.*tf32, bf16, fp16"):
        recorded_convolution("nvidia-h100", "fp32")
    with pytest.raises(ValueError, match="no convolution in 'bf16' is recorded for 'nvidia-h200'"):
        recorded_convolution("nvidia-h200")


@pytest.mark.slow
def test_pictures_name_machine_unit_and_sizes(timed):
    (axes,) = draw(timed).axes
    title = axes.get_title(loc="left")
    assert timed["machine"][0] in title and "forward and backward, fp32, batch 4, 28 px" in title
    assert axes.get_ylabel().endswith("FLOP/s: median, quartiles")
    (axes,) = draw(recorded_convolution("nvidia-h100")).axes
    assert "NVIDIA H100" in axes.get_title(loc="left")
    assert "convolution, forward, bf16, batch 64, 56 px" in axes.get_title(loc="left")
    assert axes.get_ylabel() == "TFLOP/s: median"


@pytest.mark.slow
def test_rows_that_cannot_be_compared_are_not_drawn_together(timed):
    both = pd.concat([timed, recorded_convolution("nvidia-h100")])
    with pytest.raises(ValueError, match="rows must agree in machine, precision"):
        draw(both)


@pytest.mark.parametrize("channels", [[], [8, 0]])
def test_channels_are_needed(channels):
    with pytest.raises(ValueError, match="give counts of 1 or more"):
        convolution_times(CPU, channels)


def test_unknown_precision_is_refused():
    with pytest.raises(ValueError, match="precision='int8': choose fp32"):
        convolution_times(CPU, [8], "int8")


def test_number_format_sets_tf32_back():
    before = torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32
    torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = True, False
    try:
        with number_format(CPU, "bf16") as dtype:
            assert dtype == torch.bfloat16 and not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.allow_tf32 and not torch.backends.cuda.matmul.allow_tf32
    finally:
        torch.backends.cudnn.allow_tf32, torch.backends.cuda.matmul.allow_tf32 = before
