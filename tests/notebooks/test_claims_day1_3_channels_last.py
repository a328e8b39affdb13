"""What lab 1.3 and its quiz say of numbers, against the records and against PyTorch itself."""

import gzip
import json

import pandas as pd
import pytest
import torch
from claims import text_of, text_of_quiz
from torch import nn

from course import channels_last, recorded
from course.runs.recordings import trace_path
from course.topics import layout
from course.traces import tables
from course.traces.tables import Trace
from course.training import models

TEXT, QUIZ = text_of("day1_3_channels_last"), text_of_quiz("day1_3")
NAMES = ("amp", "channels_last")
LAST = torch.channels_last


@pytest.fixture(scope="module")
def speeds() -> pd.DataFrame:
    """Images/s of both rungs on the H100, by precision and batch size, and their ratio."""
    runs = recorded("nvidia-h100")
    runs = runs[runs["rung"].isin(NAMES)]
    table = runs.pivot(index=["precision", "batch_size"], columns="rung", values="images_per_s")
    return table.assign(ratio=table["channels_last"] / table["amp"])


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {name: tables.read(trace_path("nvidia-h100", name)) for name in NAMES}


@pytest.fixture(scope="module")
def ms_by_part(traces: dict[str, Trace]) -> pd.DataFrame:
    return pd.DataFrame(
        {name: layout.parts(each).set_index("part")["ms"] for name, each in traces.items()}
    )


def convolutions(precision: str) -> pd.DataFrame:
    """Microseconds of the recorded convolution: a row a count of channels, a column a layout."""
    table = layout.recorded_convolution("nvidia-h100", precision)
    return table.pivot(index="channels", columns="layout", values="ms") * 1e3


class TestStrides:
    def test_a_row_of_the_predicted_batch(self) -> None:
        assert "the next row begins 192 numbers later. The stride of c is 1" in TEXT
        images = torch.empty(8, 3, 64, 64).to(memory_format=LAST)
        assert images.stride(2) == 192 == 64 * 3
        assert images.stride(1) == 1 and images.shape == (8, 3, 64, 64)

    def test_what_undoes_it(self) -> None:
        assert "`reshape` copies without telling you" in TEXT
        assert "It copies a channels_last tensor back" in TEXT
        assert "`permute` moves no number" in TEXT
        images = torch.empty(8, 3, 64, 64).to(memory_format=LAST)
        with pytest.raises(RuntimeError):
            images.view(8, -1)
        assert images.reshape(8, -1).data_ptr() != images.data_ptr()
        back = images.contiguous()
        assert back.data_ptr() != images.data_ptr() and layout.layout_of(back) == "NCHW"
        swapped = images.permute(0, 2, 3, 1)
        assert swapped.data_ptr() == images.data_ptr() and swapped.is_contiguous()

    def test_one_channel_or_one_pixel_has_both_layouts(self) -> None:
        assert "With one channel, or with one pixel, both orders are the same" in TEXT
        for shape in [(8, 1, 64, 64), (256, 64, 1, 1)]:
            for tensor in (torch.empty(shape), channels_last(torch.empty(shape))):
                assert layout.layout_of(tensor) == "either"

    def test_how_many_convolutions_resnet_50_has(self) -> None:
        assert "ResNet-50 has in 36 of its 53 convolutions" in TEXT
        assert "each of the 17 convolutions larger than 1 × 1 converts its weight" in TEXT
        assert "Inside ResNet-50 all channels are multiples of 64. Only its first" in TEXT
        assert "ResNet-50's 17 convolutions larger than 1 × 1" in QUIZ
        with torch.device("meta"):
            model = models.create("resnet50", classes=16)
        found = [each for each in model.modules() if isinstance(each, nn.Conv2d)]
        assert len(found) == 53
        assert sum(each.kernel_size == (1, 1) for each in found) == 36
        inside = {each.in_channels for each in found[1:]} | {each.out_channels for each in found}
        assert found[0].in_channels == 3 and all(count % 64 == 0 for count in inside)

    def test_the_window(self) -> None:
        assert "With 64 channels that is 576 numbers" in TEXT
        assert "the next channel is 3,136 numbers away" in TEXT
        assert "3 stretches of 192 numbers" in TEXT
        assert "do not expect a factor of five" in TEXT
        image, lines = torch.empty(1, 64, 56, 56), {}
        assert 3 * 3 * 64 == 576 and image.stride(1) == 3136
        for name, tensor in {"NCHW": image, "NHWC": channels_last(image)}.items():
            window = layout.addresses(tensor).query("h < 3 and w < 3")["address"]
            lines[name] = (window // 16).nunique()
            if name == "NHWC":
                stretches = (window.diff() != 1).cumsum().value_counts()
                assert list(stretches) == [192, 192, 192]
        assert 5 < lines["NCHW"] / lines["NHWC"] < 5.5


class TestRecordedConvolution:
    def test_65_channels(self) -> None:
        assert "65 channels are 3 % more work than 64" in TEXT
        assert round((65 / 64) ** 2 - 1, 2) == 0.03
        assert "One channel more takes five times as long" in TEXT
        us = convolutions("bf16")["NHWC"]
        assert us[65] / us[64] == pytest.approx(5, abs=0.25)

    def test_more_can_be_faster_and_64_is_best(self) -> None:
        assert "72 channels take half the time of 65" in TEXT
        assert "64 channels take less time than 56, and 128 less than 120" in TEXT
        assert "120 channels take less than half the time of 124" in QUIZ
        assert "65 channels take about twice the time of 72" in QUIZ
        us = convolutions("bf16")
        assert us["NHWC"][72] / us["NHWC"][65] == pytest.approx(0.5, abs=0.02)
        assert us["NHWC"][120] < 0.5 * us["NHWC"][124]
        for each in us.columns:
            assert us[each][64] < us[each][56] and us[each][128] < us[each][120]

    def test_both_are_needed(self) -> None:
        assert "With multiples of 8, NHWC is 1.2 to 2.2 times as fast as NCHW" in TEXT
        assert "With other counts the two differ by 12 % at most" in TEXT
        us = convolutions("bf16")
        gain = us["NCHW"] / us["NHWC"]
        eights = gain[gain.index % 8 == 0]
        assert (round(eights.min(), 1), round(eights.max(), 1)) == (1.2, 2.2)
        others = gain[gain.index % 8 != 0]
        assert max(others.max(), 1 / others.min()) == pytest.approx(1.12, abs=0.005)

    def test_multiples_of_four_in_tf32(self) -> None:
        assert "they do 1.8 times the TFLOP/s of 63 and 127, in bf16 no more than those" in TEXT
        assert "68 is no better than 70 here" in TEXT
        speed = {}
        for precision in ("tf32", "bf16"):
            table = layout.recorded_convolution("nvidia-h100", precision)
            speed[precision] = table[table["layout"] == "NHWC"].set_index("channels")["tflop_per_s"]
        for four, odd in [(60, 63), (124, 127)]:
            assert speed["tf32"][four] / speed["tf32"][odd] == pytest.approx(1.8, abs=0.05)
            assert speed["bf16"][four] <= speed["bf16"][odd]
        assert speed["tf32"][68] <= speed["tf32"][70]


class TestTraces:
    def test_the_whole_gain(self, speeds: pd.DataFrame) -> None:
        assert "makes training on an NVIDIA H100 nearly 1.8 times as fast" in TEXT
        assert "In bf16 the gain is nearly 1.8" in TEXT
        assert 1.75 < speeds.loc[("bf16", 256), "ratio"] < 1.8
        assert "in fp16 PyTorch hands BatchNorm to cuDNN, and the gain is 1.72" in TEXT
        assert round(speeds.loc[("fp16", 256), "ratio"], 2) == 1.72
        for name in ("amp_fp16", "channels_last_fp16"):
            rows = tables.read(trace_path("nvidia-h100", name)).kernels
            rows = rows[rows["operator"].str.contains("batch_norm")]
            assert rows["kernel"].str.contains("cudnn").all()

    def test_the_gain_by_batch(self, speeds: pd.DataFrame) -> None:
        assert "The gain falls from 1.81 with 1,024 images to 1.66 with 64" in TEXT
        ratio = speeds.loc["bf16", "ratio"].dropna()
        assert (round(ratio[1024], 2), round(ratio[64], 2)) == (1.81, 1.66)
        assert ratio.is_monotonic_increasing and set(ratio.index) == {64, 128, 256, 512, 1024}

    def test_conversions_are_there_and_go(self, traces: dict[str, Trace]) -> None:
        assert "226 [kernels](../docs/glossary.md#kernel) turn NCHW into NHWC or back" in TEXT
        assert "What is left is another kind, `nhwcAddPaddingKernel`" in TEXT
        turned = {
            name: each.kernels[each.kernels["kernel"].str.contains("nchwToNhwc|nhwcToNchw")]
            for name, each in traces.items()
        }
        assert len(turned["amp"]) == 226 and turned["channels_last"].empty
        assert turned["amp"]["operator"].str.contains("conv").all()
        (left,) = layout.layout_kernels(traces["channels_last"])["name"]
        assert "nhwcAddPaddingKernel" in left

    def test_padding_is_of_the_first_convolution(self, traces: dict[str, Trace]) -> None:
        assert "At the first convolution: cuDNN pads its 3 channels" in TEXT
        assert "No: less than 1 % of the step could be saved" in TEXT
        kernels = traces["channels_last"].kernels
        padding = kernels[kernels["kernel"].str.contains("AddPadding")]
        assert all((64, 3, 7, 7) in shapes for shapes in padding["input_shapes"])
        assert padding["duration_s"].sum() < 0.01 * kernels["duration_s"].sum()

    def test_what_the_conversions_explain(self, ms_by_part: pd.DataFrame) -> None:
        assert "the conversions explain a factor of 1.13" in TEXT
        amp = ms_by_part["amp"]
        assert round(1 / (1 - amp["layout conversions"] / amp.sum()), 2) == 1.13

    def test_where_the_time_was_saved(self, ms_by_part: pd.DataFrame) -> None:
        assert "two thirds of the time saved come from [BatchNorm]" in TEXT
        assert '"Tensor Cores want NHWC" is true, and explains a third of the time saved' in TEXT
        assert "The convolutions became a little faster" in TEXT and "all else stayed" in TEXT
        before, after = (ms_by_part[name] for name in NAMES)
        share = (before - after) / (before - after).sum()
        assert share["BatchNorm"] == pytest.approx(2 / 3, abs=0.02)
        explained = share["layout conversions"] + share["convolutions"]
        assert explained == pytest.approx(1 / 3, abs=0.02)
        assert 0.8 < after["convolutions"] / before["convolutions"] < 0.9
        assert after["all else"] / before["all else"] == pytest.approx(1, abs=0.02)

    def test_batchnorm_by_channels(self, traces: dict[str, Trace]) -> None:
        assert "2,048 threads on each of its 132 *multiprocessors*" in TEXT
        assert "64 channels fill an eighth of it, and 512 nearly all of it" in TEXT
        assert "from there on the ratio is below 1.5" in TEXT
        with gzip.open(trace_path("nvidia-h100", "amp")) as file:
            (gpu,) = json.load(file)["deviceProperties"]
        assert (gpu["numSms"], gpu["maxThreadsPerMultiprocessor"]) == (132, 2048)
        blocks = gpu["numSms"] * gpu["maxThreadsPerMultiprocessor"] / 512
        assert 64 / blocks == pytest.approx(1 / 8, abs=0.01) and 0.95 < 512 / blocks <= 1
        operator = "aten::native_batch_norm_backward"
        before, after = (layout.ms_by_channels(traces[name], operator) for name in NAMES)
        ratio = before / after
        assert (ratio[ratio.index >= 512] < 1.5).all() and (ratio[ratio.index < 512] > 1.5).all()

    def test_forward_and_backward_shrink_and_the_optimizer_does_not(
        self, traces: dict[str, Trace]
    ) -> None:
        assert "Forward and backward get shorter. The optimizer does not" in TEXT
        before, after = (
            tables.by_phase(traces[name]).set_index("phase")["gpu_s"] for name in NAMES
        )
        assert all(after[phase] < 0.7 * before[phase] for phase in ("forward", "backward"))
        assert after["optimizer"] == pytest.approx(before["optimizer"], rel=0.02)


def test_the_quiz_strides() -> None:
    assert "(N, C, H, W) = (2, 3, 4, 5)" in QUIZ
    assert torch.empty(2, 3, 4, 5).to(memory_format=LAST).stride() == (60, 1, 15, 3)
    assert 'text = "(60, 1, 15, 3)" right = true' in QUIZ
