"""Memory layout: addresses against real memory, layouts and copies as they happen, the figures."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

from course.analysis.traces import tables as trace
from course.charts.base import Picture, contrast
from course.runs.recordings import trace_path
from course.training.precision import channels_last
from labs.day1_3_channels_last import figures, strides

ORDERS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}


def small(order: str = "NCHW") -> torch.Tensor:
    return torch.randn(2, 3, 2, 4).to(memory_format=ORDERS[order])


@pytest.mark.parametrize("order", ORDERS)
class TestAddresses:
    def test_memory_holds_at_each_address_the_number_that_the_table_says(self, order: str) -> None:
        tensor = small(order)
        memory = tensor.as_strided((tensor.numel(),), (1,))
        table = strides.addresses(tensor)
        assert len(table) == tensor.numel()
        assert list(table["address"]) == list(range(tensor.numel()))
        for row in table.itertuples():
            assert tensor[row.n, row.c, row.h, row.w] == memory[row.address]

    def test_the_last_letter_of_the_order_varies_fastest(self, order: str) -> None:
        first, second = strides.addresses(small(order)).iloc[:2].to_dict(orient="records")
        moved = {name for name in "nchw" if first[name] != second[name]}
        assert moved == {order[-1].lower()}


def test_addresses_of_another_number_of_dimensions_are_refused() -> None:
    with pytest.raises(ValueError, match=r"4-d tensor \(N, C, H, W\), not one of \(2, 3\)"):
        strides.addresses(torch.ones(2, 3))


def network() -> nn.Module:
    """A convolution of 1 × 1 between two larger ones, as in a ResNet's block."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 16, 1),
        nn.Conv2d(16, 8, 3),
        nn.ReLU(),  # whose backward brings the gradient into the layout of the activations
    )


def step(model: nn.Module, images: torch.Tensor) -> None:
    model(images).square().mean().backward()


class TestOperatorLayouts:
    def convolutions(self, model: nn.Module, images: torch.Tensor) -> pd.DataFrame:
        table = strides.operator_layouts(lambda: step(model, images))
        return table[table["operator"].str.startswith("convolution")]

    def test_channels_last_spreads_forward_and_backward(self) -> None:
        found = self.convolutions(channels_last(network()), channels_last(torch.randn(2, 3, 9, 9)))
        assert set(found["phase"]) == {"forward", "backward"}
        assert set(found["inputs"]) == {"NHWC", "NHWC, either"}
        assert found.loc[found["phase"] == "forward", "calls"].sum() == 3

    def test_by_default_all_is_nchw(self) -> None:
        found = self.convolutions(network(), torch.randn(2, 3, 9, 9))
        assert set(found["inputs"]) == {"NCHW", "NCHW, either"}

    def test_contiguous_undoes_it_and_is_seen(self) -> None:
        images = channels_last(torch.randn(2, 3, 9, 9))
        (row,) = strides.operator_layouts(images.contiguous).itertuples()
        assert (row.inputs, row.output) == ("NHWC", "NCHW")

    def test_a_view_moves_nothing_and_is_left_out(self) -> None:
        images = torch.randn(2, 3, 9, 9)
        assert strides.operator_layouts(lambda: images[:, :2]).empty


class TestConversions:
    def copies(self, *, model_on: bool, images_on: bool, backward: bool = False) -> pd.DataFrame:
        model = channels_last(network(), on=model_on)
        images = channels_last(torch.randn(2, 3, 9, 9), on=images_on)
        if backward:
            return strides.conversions(step, model, images)
        return strides.conversions(model, images)

    @pytest.mark.parametrize("on", [True, False])
    def test_none_where_both_agree(self, on: bool) -> None:
        assert self.copies(model_on=on, images_on=on).empty

    def test_images_alone_make_each_larger_weight_be_copied(self) -> None:
        found = self.copies(model_on=False, images_on=True)
        assert dict(zip(found["shape"], found["copies"])) == {(8, 3, 3, 3): 1, (8, 16, 3, 3): 1}
        assert found["megabytes"].sum() == pytest.approx((8 * 3 * 9 + 8 * 16 * 9) * 4 / 1e6)

    def test_model_alone_makes_the_images_be_copied(self) -> None:
        (row,) = self.copies(model_on=True, images_on=False).itertuples()
        assert (row.operator, row.shape, row.copies) == ("conv2d", (2, 3, 9, 9), 1)

    def test_backward_copies_once_more(self) -> None:
        found = self.copies(model_on=False, images_on=True, backward=True)
        assert found.groupby("operator")["copies"].sum()["convolution_backward"] >= 2

    def test_a_copy_outside_convolutions_is_not_counted(self) -> None:
        assert strides.conversions(channels_last(torch.randn(2, 3, 9, 9)).contiguous).empty


@pytest.fixture(scope="module")
def traces() -> dict[str, trace.Trace]:
    names = ("amp", "channels_last")
    return {name: trace.read(trace_path("nvidia-h100", name)) for name in names}


class TestParts:
    def test_every_kernel_is_in_one_part(self, traces: dict[str, trace.Trace]) -> None:
        for each in traces.values():
            table = strides.parts(each)
            assert table["kernels"].sum() == len(each.kernels)
            assert table["ms"].sum() == pytest.approx(each.kernels["duration_s"].sum() * 1e3)
            assert table["share"].sum() == pytest.approx(1)

    def test_conversions_are_those_of_layout_kernels(self, traces: dict[str, trace.Trace]) -> None:
        for each in traces.values():
            row = strides.parts(each).set_index("part").loc[strides.CONVERSIONS]
            known = trace.layout_kernels(each)
            assert row["kernels"] == known["count"].sum() > 0
            assert row["share"] == pytest.approx(known["share"].sum())

    def test_what_the_lab_says_of_the_recorded_steps(self, traces: dict[str, trace.Trace]) -> None:
        """BatchNorm saves more than the conversions, and most where there are few channels."""
        before, after = (strides.parts(each).set_index("part")["ms"] for each in traces.values())
        saved = before - after
        assert saved["BatchNorm"] > 2 * saved[strides.CONVERSIONS] > saved["all else"]
        ms = [
            strides.ms_by_channels(each, "aten::native_batch_norm_backward")
            for each in traces.values()
        ]
        ratio = ms[0] / ms[1]
        assert ratio[64] > 5
        assert ratio.is_monotonic_decreasing

    def test_what_lab_2_says_of_bf16_and_fp16(self, traces: dict[str, trace.Trace]) -> None:
        half = trace.read(trace_path("nvidia-h100", "channels_last_fp16"))
        bf16, fp16 = (
            strides.parts(each).set_index("part")["ms"].round()
            for each in (traces["channels_last"], half)
        )
        assert (bf16["BatchNorm"], fp16["BatchNorm"]) == (27, 17)
        assert (bf16["convolutions"], fp16["convolutions"]) == (18, 16)

    def test_an_operator_that_is_not_there_is_refused(self, traces: dict[str, trace.Trace]) -> None:
        with pytest.raises(ValueError, match=r"'aten::gelu' has no kernel.*aten::conv2d"):
            strides.ms_by_channels(traces["amp"], "aten::gelu")


def texts(picture: Picture) -> list[str]:
    return [text.get_text() for text in picture.axes[0].texts]


class TestPictures:
    def test_strides_writes_what_tensor_stride_says(self, tmp_path: Path) -> None:
        tables = {order: strides.addresses(small(order)) for order in ORDERS}
        picture = figures.plot_strides(tables)
        said = " ".join(texts(picture))
        for order in ORDERS:
            assert f"{order}: stride of (n, c, h, w) = {small(order).stride()}" in said
        picture.savefig(tmp_path / "strides.png")

    def test_memory_line_holds_pixels_channel_after_channel_or_side_by_side(self) -> None:
        for order, line in {"NCHW": "abcdefgh" * 3, "NHWC": "aaabbbcccdddeeefffggghhh"}.items():
            picture = figures.plot_strides({order: strides.addresses(small(order))})
            letters = "".join(text for text in texts(picture) if len(text) == 1)
            assert letters[48:] == line + line.upper()

    def test_letters_can_be_read_on_their_channels(self) -> None:
        picture = figures.plot_strides({"NHWC": strides.addresses(torch.ones(1, 6, 1, 1))})
        letters = [text for text in picture.axes[0].texts if len(text.get_text()) == 1]
        colours = [*figures.CHANNELS] * 2  # as it is indexed, and in memory
        for letter, colour in zip(letters, colours, strict=True):
            assert contrast(letter.get_color(), colour) >= 4.5

    def test_one_channel_has_any_stride(self) -> None:
        picture = figures.plot_strides({"one": strides.addresses(torch.ones(1, 1, 2, 4))})
        assert "one: stride of (n, c, h, w) = (any, any, 4, 1)" in texts(picture)

    def test_a_large_tensor_is_refused(self) -> None:
        with pytest.raises(ValueError, match="take a smaller tensor"):
            figures.plot_strides({"large": strides.addresses(torch.ones(1, 3, 8, 8))})

    def test_tensors_of_different_shapes_are_refused(self) -> None:
        tables = [strides.addresses(torch.ones(1, 1, 2, width)) for width in (2, 3)]
        with pytest.raises(ValueError, match="one shape"):
            figures.plot_strides(dict(zip("ab", tables)))

    def test_parts_draws_every_trace_and_names_the_machine(
        self, traces: dict[str, trace.Trace], tmp_path: Path
    ) -> None:
        tables = {name: strides.parts(each) for name, each in traces.items()}
        picture = figures.plot_parts(tables)
        (axes,) = picture.axes
        assert [label.get_text() for label in axes.get_yticklabels()] == list(traces)
        assert "NVIDIA H100" in axes.get_xlabel()
        for place, table in enumerate(tables.values()):
            bars = [container[place] for container in axes.containers]
            assert [bar.get_width() for bar in bars] == pytest.approx(list(table["ms"]))
        picture.savefig(tmp_path / "parts.png")
