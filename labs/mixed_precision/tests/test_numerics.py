"""Number formats, gradients in the range of fp16, and autocast's types."""

import pandas as pd
import pytest
import torch
from torch import nn

from course.training import models
from labs import mixed_precision as lab
from labs.mixed_precision.rounding import BITS, NAMES, fp16_shares, gradient_magnitudes

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats


@pytest.fixture(scope="module")
def small() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return models.create("resnet18", 10), torch.randn(4, 3, 32, 32), torch.arange(4)


@pytest.mark.parametrize("dtype, name", NAMES.items())
def test_bits_are_those_of_torch(dtype: torch.dtype, name: str) -> None:
    info, (exponent_bits, mantissa_bits) = torch.finfo(dtype), BITS[name]
    assert info.bits == 1 + exponent_bits + mantissa_bits
    assert info.eps == 2.0**-mantissa_bits
    assert info.smallest_normal == 2.0 ** (2 - 2 ** (exponent_bits - 1))


def test_gradients_match_autograd() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(2 * 36, 3))
    images, labels = torch.randn(2, 1, 8, 8), torch.tensor([0, 2])
    table = gradient_magnitudes(model, images, labels).set_index("kind")["magnitude"]
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
    shares = fp16_shares(pd.Series([0.0, value, 1.0]), scale)  # zeros do not count
    assert shares[fate] == (1 if fate == "normal" else 0.5) and sum(shares.values()) == 1


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
