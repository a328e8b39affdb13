"""What lab 1.2 and its quiz say of numbers, against the records and against PyTorch itself."""

import gzip
import json
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest
import torch
from claims import text_of, text_of_quiz
from torch import nn

from course import models, recorded
from course.runs.recordings import trace_path
from course.topics import layout, numerics
from course.traces import tables
from course.traces.tables import Trace

TEXT, QUIZ = text_of("day1_2_mixed_precision"), text_of_quiz("day1_2")
FP16, BF16 = torch.float16, torch.bfloat16
TRACED = ("tf32", "amp", "amp_fp16", "channels_last", "channels_last_fp16")


@pytest.fixture(scope="module")
def h200() -> pd.DataFrame:
    """The recorded rungs at batch 256, by rung and precision."""
    runs = recorded("nvidia-h200")
    runs = runs[runs["batch_size"].eq(256) & runs["rung"].isin(["device", "amp", "channels_last"])]
    return runs.set_index(["rung", "precision"])


@pytest.fixture(scope="module")
def traces() -> dict[str, Trace]:
    return {name: tables.read(trace_path("nvidia-h200", name)) for name in TRACED}


@pytest.fixture(scope="module")
def ms(traces: dict[str, Trace]) -> pd.DataFrame:
    return pd.DataFrame(
        {name: layout.parts(each).set_index("part")["ms"] for name, each in traces.items()}
    )


def after(value: float, dtype: torch.dtype) -> float:
    """The next larger number."""
    return torch.nextafter(*torch.tensor([value, torch.inf], dtype=dtype)).item()


class TestFormats:
    def test_precision(self) -> None:
        assert "fp16 has 10 bits of mantissa: after 1 comes 1 + 2⁻¹⁰, so 1.0001 becomes 1" in TEXT
        assert "Above 2,048 its numbers are 2 apart. bf16 has 7: after 1 comes 1 + 1/128" in TEXT
        assert after(1, FP16) == 1 + 2**-10 and after(1, BF16) == 1 + 1 / 128
        assert torch.tensor(1.0001, dtype=FP16) == 1
        assert after(2048, FP16) == 2050

    def test_range(self) -> None:
        assert "It ends at 65,504, and 65,520 becomes infinite" in TEXT
        assert "Its smallest number is 2⁻²⁴, and 2⁻²⁵ becomes zero" in TEXT
        assert "Below 2⁻¹⁴ its numbers are [subnormal](../docs/glossary.md#subnormal): they" in TEXT
        assert torch.finfo(FP16).smallest_normal == 2**-14
        assert "fp16's smallest number is 2⁻²⁴" in TEXT
        assert torch.finfo(FP16).max == 65504 and torch.tensor(65520.0, dtype=FP16).isinf()
        assert after(0, FP16) == 2**-24 and torch.tensor(2.0**-25, dtype=FP16) == 0

    def test_halfway_goes_to_the_even_neighbour(self) -> None:
        assert "A number exactly halfway goes to the neighbour whose last bit is 0" in TEXT
        for value, dtype, rounded in [(1 + 2**-11, FP16, 1), (2049, FP16, 2048)] + [
            (1 + 3 * 2**-11, FP16, 1 + 2**-9),
            (1 + 1 / 256, BF16, 1),
        ]:
            assert torch.tensor(value, dtype=dtype).item() == rounded

    def test_bf16_is_fp32_without_its_last_16_bits(self) -> None:
        assert "bf16 *is* fp32 without its last 16 bits" in TEXT
        assert "there are only 65,536 of them" in TEXT and 2**16 == 65_536
        values = torch.randn(100).bfloat16()
        bits = values.float().view(torch.int32)
        assert (bits & 0xFFFF).eq(0).all()
        assert torch.equal((bits >> 16).short(), values.view(torch.int16))

    def test_the_sum_stands_still(self) -> None:
        assert "At 2,048 in fp16, and at 256 in bf16, adding 1 leads exactly halfway" in TEXT
        for dtype, last in ((FP16, 2048), (BF16, 256)):
            total = torch.zeros((), dtype=dtype)
            for _ in range(last + 10):
                total += 1
            assert total == last and after(last, dtype) == last + 2

    def test_the_weight_never_moves(self) -> None:
        assert "In 16 bits the weight never moves" in TEXT
        assert (
            "an update below half of that is lost, *every time*. In bf16 the limit is 2⁻⁸" in TEXT
        )
        for dtype, limit in ((FP16, 2.0**-11), (BF16, 2.0**-8)):
            one = torch.tensor(1.0, dtype=dtype)
            assert one + 0.0001 == 1 and one + 0.99 * limit == 1 and one + 1.01 * limit > 1

    def test_tf32_and_the_errors_of_a_product(self) -> None:
        assert "TF32 and fp16 have the same mantissa, so the same error" in TEXT
        assert "bf16's is eight times as large" in TEXT
        assert "fp32's is about a thousand times smaller than TF32's" in TEXT
        assert "TF32: 19 bits" in TEXT and "rounds their mantissa to 10 bits" in TEXT
        formats = numerics.formats()
        assert (formats.loc["TF32", "bits"], formats.loc["TF32", "mantissa_bits"]) == (19, 10)
        torch.manual_seed(0)
        a, b = torch.randn(2, 512, 512)
        exact = a.double() @ b.double()

        def error(rounded: Any) -> float:
            return ((rounded(a) @ rounded(b)).double() - exact).norm().item()

        tf32 = error(numerics.to_tf32)
        assert error(lambda t: t.half().float()) == pytest.approx(tf32, rel=0.02)
        assert error(lambda t: t.bfloat16().float()) / tf32 == pytest.approx(8, rel=0.05)
        assert 300 < tf32 / error(lambda t: t) < 3000

    @pytest.mark.slow
    def test_pytorchs_default(self) -> None:
        assert "PyTorch lets convolutions use TF32, and matrix products not" in TEXT
        asked = "import torch.backends as b; print(b.cudnn.allow_tf32, b.cuda.matmul.allow_tf32)"
        # In a process of its own: a run of another test may have set them.
        said = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True)
        assert said.stdout.split() == ["True", "False"]


class TestAutocast:
    def test_23_conversions(self) -> None:
        assert "has 23, made anew in every step: the weights of 20 convolutions" in TEXT
        with torch.device("meta"):
            network = models.create("resnet18", classes=10)
        parts = [*network.modules()]
        assert sum(isinstance(each, nn.Conv2d) for each in parts) == 20
        (last,) = (each for each in parts if isinstance(each, nn.Linear))
        assert 20 + len(["images"]) + len([*last.parameters()]) == 23

    def test_the_loss_on_an_nvidia_gpu(self) -> None:
        assert "On a CPU both take fp32, on an NVIDIA GPU only the second" in TEXT
        with gzip.open(trace_path("nvidia-h100", "amp")) as file:
            events = json.load(file)["traceEvents"]
        first = {
            name: next(e["args"]["Input type"][0] for e in events if e["name"] == f"aten::{name}")
            for name in ("_log_softmax", "nll_loss_forward")
        }
        assert first == {"_log_softmax": "c10::BFloat16", "nll_loss_forward": "float"}


class TestRecords:
    def test_tf32(self, h200: pd.DataFrame) -> None:
        assert (
            "Two lines make training 2.43 times as fast, and the loss is the same to four" in TEXT
        )
        assert "`peak_gib` stays at 21" in TEXT
        off, on = (h200.loc[("device", each)] for each in ("fp32", "tf32"))
        assert round(on["images_per_s"] / off["images_per_s"], 2) == 2.43
        assert f"{on['last_loss']:.4g}" == f"{off['last_loss']:.4g}"
        assert round(on["peak_gib"]) == round(off["peak_gib"]) == 21

    def test_amp_beside_fp32_and_beside_tf32(self, h200: pd.DataFrame) -> None:
        assert "AMP is 2.66 times as fast as fp32, but only 1.10 times as fast as TF32" in TEXT
        assert "the peak falls from 21 to 11 GiB" in TEXT
        assert "The loss stays within a thousandth of fp32's" in TEXT
        amp = h200.loc[("amp", "bf16")]
        off, on = (h200.loc[("device", each)] for each in ("fp32", "tf32"))
        assert round(amp["images_per_s"] / off["images_per_s"], 2) == 2.66
        assert f"{amp['images_per_s'] / on['images_per_s']:.2f}" == "1.10"
        assert (round(off["peak_gib"]), round(amp["peak_gib"])) == (21, 11)
        assert abs(amp["last_loss"] / off["last_loss"] - 1) < 1e-3

    def test_forward_and_backward_get_shorter_and_the_update_does_not(
        self, h200: pd.DataFrame
    ) -> None:
        assert "forward and backward get shorter. The update does not" in TEXT
        before, amp = h200.loc[("device", "fp32")], h200.loc[("amp", "bf16")]
        assert all(amp[phase] < 0.6 * before[phase] for phase in ("forward_s", "backward_s"))
        assert amp["optimizer_s"] == pytest.approx(before["optimizer_s"], rel=0.1)

    def test_why_it_is_not_faster(self, ms: pd.DataFrame, traces: dict[str, Trace]) -> None:
        assert "From TF32 to bf16 the convolutions need half the time" in TEXT
        assert "All else, mostly ReLU and additions, moves half the bytes and gains nearly" in TEXT
        assert "BatchNorm gets *slower*, 61 ms instead of 43" in TEXT
        shrunk = ms["amp"] / ms["tf32"]
        assert shrunk["convolutions"] == pytest.approx(0.5, abs=0.05)
        assert shrunk["convolutions"] < shrunk["all else"] < 0.62
        assert (round(ms["amp"]["BatchNorm"]), round(ms["tf32"]["BatchNorm"])) == (61, 43)
        rows = traces["tf32"].kernels
        rows = rows[~rows["operator"].str.contains("conv|batch_norm")]
        known = rows["operator"].str.contains("relu|threshold|add")
        assert rows["duration_s"][known].sum() > 0.8 * rows["duration_s"].sum()

    def test_who_computes_batchnorm(self, traces: dict[str, Trace]) -> None:
        assert "in bf16 PyTorch does not call cuDNN" in TEXT
        assert "fp16 goes to cuDNN, bf16 does not" in TEXT
        for name in TRACED:
            rows = traces[name].kernels
            rows = rows[rows["operator"].str.contains("batch_norm")]
            by_cudnn = rows["kernel"].str.contains("cudnn")
            assert by_cudnn.all() if name.endswith(("tf32", "fp16")) else not by_cudnn.any()

    def test_fp16_is_faster_by_its_batchnorm(self, h200: pd.DataFrame, ms: pd.DataFrame) -> None:
        assert "fp16 is faster by nearly a quarter, and nearly all of that is **BatchNorm**" in TEXT
        assert "The update takes longer in fp16" in TEXT
        for rung in ("amp", "channels_last"):
            fp16, bf16 = (h200.loc[(rung, each)] for each in ("fp16", "bf16"))
            assert 1.22 < fp16["images_per_s"] / bf16["images_per_s"] < 1.25
            assert fp16["optimizer_s"] > 4 * bf16["optimizer_s"]
            saved = ms[rung] - ms[f"{rung}_fp16"]
            assert saved["BatchNorm"] > 0.85 * saved.sum()

    def test_compiled_both_are_equally_fast(self) -> None:
        assert "with day 3's `torch.compile` the two differ by less than 1 %" in TEXT
        runs = recorded("nvidia-h200").query("rung == 'compile'").set_index("precision")
        assert abs(runs["images_per_s"]["fp16"] / runs["images_per_s"]["bf16"] - 1) < 0.01


def test_the_pixels_of_a_batch() -> None:
    assert "For 64 images of 224 × 224 pixels the mean divides by 3,211,264 instead of 64" in TEXT
    assert 64 * 224 * 224 == 3_211_264


def test_the_scaler_of_pytorch() -> None:
    assert "beginning with 2¹⁶" in TEXT and "After 2,000 good steps in a row it doubles it" in TEXT
    assert (
        "65,536 is 2¹⁶, so 2⁻³⁰ is held as 2⁻¹⁴" in QUIZ and "multiplies the loss by 65,536" in QUIZ
    )
    scaler = torch.amp.GradScaler("cpu")
    assert scaler.get_scale() == 2**16 == 65536 and 2.0**-30 * 65536 == 2.0**-14
    assert scaler.get_growth_interval() == 2000
    assert (scaler.get_growth_factor(), scaler.get_backoff_factor()) == (2, 0.5)


def test_the_quiz_formats() -> None:
    assert "In fp16 the number next to 1 is about 1.00098" in QUIZ
    assert f"{after(1, FP16):.5f}" == "1.00098"
    assert "0.0001 is less than half of the step of 2⁻¹⁰" in QUIZ and 0.0001 < 2**-11
    assert "A gradient is 2⁻³⁰, about 10⁻⁹" in QUIZ and 0.9e-9 < 2**-30 < 1e-9
    assert "reaches below 10⁻³⁸" in QUIZ and after(0, BF16) < 1e-38
    assert torch.tensor(2.0**-30, dtype=BF16) == 2**-30
    assert "fp16 ends at 65,504" in QUIZ


def test_the_quiz_tf32_on_the_h100() -> None:
    assert "from 858 to 1,859 images a second, and the peak stays at 21 GiB" in QUIZ
    runs = recorded("nvidia-h100").query("rung == 'device' and batch_size == 256")
    runs = runs.set_index("precision")
    assert [round(runs["images_per_s"][each]) for each in ("fp32", "tf32")] == [858, 1859]
    assert set(runs["peak_gib"].round()) == {21}
