"""Number formats: tables against torch's own types, experiments on real networks, figures."""

import math

import pandas as pd
import pytest
import torch
from cases import for_all
from torch import nn

from course import rung
from course.charts import Picture
from course.data import default_set
from course.training import models
from labs.day1_2_mixed_precision import figures, rounding

FORMATS = rounding.formats()


@pytest.fixture(scope="module")
def small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return models.create("resnet18", 10), torch.randn(4, 3, 32, 32), torch.arange(4)


@pytest.fixture(scope="module")
def gradients(small) -> pd.DataFrame:
    return rounding.gradient_magnitudes(*small, sample=2000)


@for_all("name, dtype", rounding.DTYPES.items())
class TestFormat:
    def test_largest_is_the_last_finite_number(self, name: str, dtype: torch.dtype) -> None:
        largest = torch.tensor(FORMATS.loc[name, "largest"], dtype=dtype)
        assert largest.isfinite()
        assert torch.nextafter(largest, torch.tensor(math.inf, dtype=dtype)).isinf()

    def test_smallest_is_the_first_above_zero(self, name: str, dtype: torch.dtype) -> None:
        after_zero = torch.nextafter(torch.tensor(0.0, dtype=dtype), torch.tensor(1.0, dtype=dtype))
        assert after_zero.item() == FORMATS.loc[name, "smallest_subnormal"]

    def test_spacing_at_1(self, name: str, dtype: torch.dtype) -> None:
        one = torch.tensor(1.0, dtype=dtype)
        after = torch.nextafter(one, torch.tensor(2.0, dtype=dtype))
        assert (after - one).item() == FORMATS.loc[name, "spacing_at_1"]

    def test_bits_add_up(self, name: str, dtype: torch.dtype) -> None:
        row = FORMATS.loc[name]
        assert row["bits"] == 8 * dtype.itemsize == 1 + row["exponent_bits"] + row["mantissa_bits"]


def test_tf32_has_the_range_of_fp32_and_the_precision_of_fp16() -> None:
    tf32 = FORMATS.loc["TF32"]
    assert tf32["bits"] == 1 + tf32["exponent_bits"] + tf32["mantissa_bits"] == 19
    assert tf32["spacing_at_1"] == FORMATS.loc["fp16", "spacing_at_1"]
    assert tf32["smallest_normal"] == FORMATS.loc["fp32", "smallest_normal"]
    largest = torch.tensor(tf32["largest"], dtype=torch.float32)
    assert rounding.to_tf32(largest) == largest
    above = torch.tensor(FORMATS.loc["fp32", "largest"], dtype=torch.float32)
    assert rounding.to_tf32(above).isinf()


def test_tf32_rounds_as_fp16_does_where_both_have_the_range() -> None:
    values = torch.cat([torch.rand(5000) * 8 - 4, 1 + torch.arange(64) / 2**12])  # and ties
    values = values[values.abs() > 2**-14]
    assert torch.equal(rounding.to_tf32(values), values.half().float())
    assert not torch.equal(rounding.to_tf32(values), values)


def test_tf32_keeps_what_is_not_finite_and_leaves_its_input() -> None:
    odd = torch.tensor([math.inf, -math.inf, math.nan, 1e-40, 0.0, -0.0, 1 / 3])
    before = odd.clone()
    rounded = rounding.to_tf32(odd)
    assert rounded[:2].tolist() == [math.inf, -math.inf] and rounded[2].isnan()
    assert rounded[4:6].signbit().tolist() == [False, True]
    assert torch.equal(odd[3:], before[3:])
    every_bit = torch.tensor([2**31 - 1], dtype=torch.int32).view(torch.float32)  # a NaN, too
    assert rounding.to_tf32(every_bit).isnan().all()
    with pytest.raises(ValueError, match="float16.*torch.float32"):
        rounding.to_tf32(odd.half())


def test_gradients_are_those_of_the_network(small, gradients: pd.DataFrame) -> None:
    model = small[0]
    convolutions = [part for part in model.modules() if isinstance(part, nn.Conv2d)]
    real = torch.cat([part.weight.grad.abs().flatten() for part in convolutions]).double()
    drawn = gradients.groupby("of")["magnitude"]
    assert drawn.size().to_dict() == {"activations": 1000, "weights": 1000}
    assert torch.isin(torch.tensor(drawn.get_group("weights").to_numpy()), real).all()
    assert not any(part._forward_hooks for part in convolutions)


def test_activation_gradients_match_autograd() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 3))
    images, labels = torch.randn(2, 1, 8, 8), torch.tensor([0, 2])
    table = rounding.gradient_magnitudes(model, images, labels, sample=20_000)
    output = model[0](images).detach().requires_grad_()
    nn.functional.cross_entropy(model[1:](output), labels).backward()
    found = set(table.loc[table["of"] == "activations", "magnitude"])
    assert found == set(output.grad.abs().double().flatten().tolist())


@for_all(
    "scale, zero, subnormal, overflow",
    [
        (1, 0.25, 0.5, 0),
        (2**2, 0, 0.5, 0),
        (2**26, 0, 0, 0.25),
    ],
)
def test_lost_share(scale: float, zero: float, subnormal: float, overflow: float) -> None:
    magnitudes = pd.Series([0.0, 2.0**-26, 2.0**-24, 2.0**-15, 2.0**-9])  # zeros do not count
    share = rounding.lost_share(magnitudes, scale)
    found = (share["zero"], share["subnormal"], share["overflow"])
    assert found == ((zero, subnormal, overflow) if scale < 2**20 else (0, 0, 0.25))
    assert sum(share.values()) == pytest.approx(1)


@for_all(
    "value, fate",
    [
        (2.0**-25, "zero"),
        (2.0**-25 * 1.01, "subnormal"),
        (2.0**-14, "normal"),
        (65_519.0, "normal"),
        (65_520.0, "overflow"),
    ],
)
def test_borders_of_fp16(value: float, fate: str) -> None:
    assert rounding.lost_share(pd.Series([value]))[fate] == 1


def test_no_gradient_at_all_is_an_error() -> None:
    with pytest.raises(ValueError, match="train for a few steps"):
        rounding.lost_share(pd.Series([0.0, 0.0]))


def test_lost_updates_follow_the_spacing() -> None:
    model = nn.Linear(4, 1, bias=False)
    with torch.no_grad():
        model.weight.fill_(1.0)
    model.weight.grad = torch.tensor([[0.0, 2.0**-13, 2.0**-9, 2.0**-6]])
    table = rounding.lost_updates(model, lr=1.0)
    assert table["weights_unchanged"].round(3).to_dict() == {
        "fp32": 0,
        "fp16": 0.333,
        "bf16": 0.667,
    }
    assert table.loc["bf16", "update_lost"] == pytest.approx(
        (2**-13 + 2**-9) / (2**-13 + 2**-9 + 2**-6)
    )
    assert torch.equal(model.weight, torch.ones(1, 4))


def types_of(small, precision: str) -> pd.DataFrame:
    model, images, labels = small

    def step() -> None:
        enabled, dtype = precision != "fp32", rounding.DTYPES[precision]
        with torch.autocast("cpu", dtype if enabled else None, enabled=enabled):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()

    return rounding.operator_types(step)


def row(table: pd.DataFrame, phase: str, operator: str) -> pd.Series:
    """The one row of an operator."""
    ((_, found),) = table[(table["phase"] == phase) & (table["operator"] == operator)].iterrows()
    return found


@pytest.mark.slow
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_autocast_is_seen_operator_by_operator(small, precision: str) -> None:
    table = types_of(small, precision)
    convolution = row(table, "forward", "convolution")
    assert (convolution["inputs"], convolution["calls"]) == (precision, 20)  # of a ResNet-18
    backward = row(table, "backward", "convolution_backward")
    assert (backward["inputs"], backward["calls"]) == (precision, 20)
    assert row(table, "forward", "_log_softmax")["inputs"] == "fp32"
    assert row(table, "forward", "native_batch_norm")["inputs"] == f"{precision}, fp32"


def test_without_autocast_everything_is_fp32(small) -> None:
    table = types_of(small, "fp32")
    assert set(table["inputs"]) == {"fp32"}
    assert set(table["phase"]) == {"forward", "backward"}


@pytest.mark.slow
def test_scale_halves_and_grows() -> None:
    table = rounding.scaler_course(steps=40)
    ratio = (table["scale"].shift(-1) / table["scale"])[:-1]
    assert set(ratio) == {0.5, 1.0, 2.0}
    assert (ratio[table["skipped"][:-1]] == 0.5).all()  # a skipped step halves, no other does
    assert (ratio[~table["skipped"][:-1]] >= 1).all()
    assert table["skipped"][0]
    assert table["loss"].iloc[-1] < table["loss"].iloc[0]


def test_a_scale_that_fits_skips_nothing() -> None:
    assert not rounding.scaler_course(steps=4, init_scale=1.0)["skipped"].any()


def test_training_starts_on_the_default_set(tiny_set, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(default_set, "ensure", lambda: tiny_set)
    cfg = rung("baseline", quick=True, model="resnet18", batch_size=4, image_px=32)
    fresh, _, _ = rounding.started_training(cfg, steps=0)
    model, images, labels = rounding.started_training(cfg, steps=2)
    assert images.shape == (4, 3, 32, 32) and labels.shape == (4,)
    last_norm = "layer1.0.bn2.weight"
    assert not fresh.get_parameter(last_norm).any() and model.get_parameter(last_norm).any()


@pytest.mark.slow
def test_pictures_show_their_numbers(gradients: pd.DataFrame) -> None:
    course = rounding.scaler_course(steps=12)
    drawn = [
        figures.plot_bits(FORMATS),
        figures.plot_range_and_precision(FORMATS),
        figures.plot_gradient_histogram(gradients, 2.0**16),
        figures.plot_scale_course(course),
    ]
    for picture in drawn:
        assert isinstance(picture, Picture)
        assert picture._repr_png_().startswith(b"\x89PNG")
    words = [text.get_text() for text in drawn[2].axes[0].texts]
    of_weights = gradients.loc[gradients["of"] == "weights", "magnitude"]
    assert f"weights: {rounding.lost_share(of_weights)['zero']:.1%}" in words[0]
    assert len(drawn[0].axes[0].patches) == FORMATS["bits"].sum()
    legend = drawn[3].axes[0].get_legend().get_texts()[1].get_text()
    assert f"({course['skipped'].sum()} of 12)" in legend
