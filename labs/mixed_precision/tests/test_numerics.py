"""Number formats: the table compared with torch's types, experiments on networks, figures."""

import math

import pandas as pd
import pytest
import torch
from torch import nn

from course.training import models
from labs import mixed_precision as lab

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

FORMATS = lab.formats()


@pytest.fixture(scope="module")
def small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return models.create("resnet18", 10), torch.randn(4, 3, 32, 32), torch.arange(4)


@pytest.mark.parametrize("name, dtype", lab.DTYPES.items())
def test_formats_are_those_of_torch(name: str, dtype: torch.dtype) -> None:
    info, row = torch.finfo(dtype), FORMATS.loc[name]
    assert row["bits"] == info.bits == 1 + row["exponent_bits"] + row["mantissa_bits"]
    assert (row["largest"], row["smallest_normal"]) == (info.max, info.smallest_normal)
    assert row["spacing_at_1"] == info.eps
    after_zero = torch.nextafter(torch.tensor(0.0, dtype=dtype), torch.tensor(1.0, dtype=dtype))
    assert row["smallest_subnormal"] == after_zero.item()


def test_tf32_has_the_range_of_fp32_and_the_precision_of_fp16() -> None:
    tf32 = FORMATS.loc["TF32"]
    assert tf32["bits"] == 19 and tf32["spacing_at_1"] == FORMATS.loc["fp16", "spacing_at_1"]
    assert tf32["smallest_normal"] == FORMATS.loc["fp32", "smallest_normal"]
    largest = torch.tensor(tf32["largest"], dtype=torch.float32)
    assert lab.round_to_tf32(largest) == largest
    assert lab.round_to_tf32(torch.tensor(torch.finfo(torch.float32).max)).isinf()
    values = torch.cat([torch.rand(5000) * 8 - 4, 1 + torch.arange(64) / 2**12])  # and ties
    values = values[values.abs() > 2**-14]  # where fp16 has its full precision
    assert torch.equal(lab.round_to_tf32(values), values.half().float())
    odd = torch.tensor([math.inf, -math.inf, math.nan, 0.0, -0.0])
    assert torch.equal(lab.round_to_tf32(odd).view(torch.int32), odd.view(torch.int32))
    with pytest.raises(ValueError, match="float16: expected torch.float32"):
        lab.round_to_tf32(odd.half())


def test_gradients_match_autograd() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 3))
    images, labels = torch.randn(2, 1, 8, 8), torch.tensor([0, 2])
    table = lab.gradient_magnitudes(model, images, labels).set_index("kind")["magnitude"]
    assert set(table["weights"]) == set(model[0].weight.grad.abs().double().flatten().tolist())
    output = model[0](images).detach().requires_grad_()
    nn.functional.cross_entropy(model[1:](output), labels).backward()
    assert set(table["activations"]) == set(output.grad.abs().double().flatten().tolist())
    assert not model[0]._forward_hooks


@pytest.mark.parametrize(
    "value, scale, fate",
    [
        (2.0**-25, 1, "zero"),
        (2.0**-25, 2, "subnormal"),
        (2.0**-14, 1, "normal"),
        (65_519.0, 1, "normal"),
        (65_520.0, 1, "overflow"),
    ],
)
def test_borders_of_fp16(value: float, scale: float, fate: str) -> None:
    shares = lab.fp16_shares(pd.Series([0.0, value, 1.0]), scale)  # zeros do not count
    assert shares[fate] == (1 if fate == "normal" else 0.5) and sum(shares.values()) == 1


def test_lost_updates_follow_the_spacing() -> None:
    model = nn.Linear(4, 1, bias=False)
    nn.init.ones_(model.weight)
    model.weight.grad = torch.tensor([[0.0, 2.0**-13, 2.0**-9, 2.0**-6]])
    table = lab.lost_updates(model, lr=1.0)
    assert table["weights_unchanged"].tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    lost = (2**-13 + 2**-9) / (2**-13 + 2**-9 + 2**-6)
    assert table.loc["bf16", "update_lost"] == pytest.approx(lost)
    assert torch.equal(model.weight, torch.ones(1, 4))


@pytest.mark.slow
def test_operator_types_below_autocast(small) -> None:
    model, images, labels = small

    def step() -> None:
        with torch.autocast("cpu", torch.bfloat16):
            loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()

    table = lab.operator_types(step)
    rows = set(table[["phase", "operator", "inputs", "calls"]].itertuples(index=False, name=None))
    assert ("forward", "convolution", "bf16", 20) in rows
    assert ("backward", "convolution_backward", "bf16", 20) in rows
    types = table.loc[table["phase"] == "forward"].set_index("operator")["inputs"]
    assert set(types[["_log_softmax"]]) == {"fp32"}
    assert set(types[["native_batch_norm"]]) == {"bf16, fp32"}
