"""Number formats, memory layout and networks: what they change in tensors."""

import os

import pytest
import torch
from cases import for_all
from torch import nn

from course.config import CHOICES, rung
from course.training import models, precision
from course.valid import HALF_FORMATS

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

CPU = torch.device("cpu")
NCHW = torch.randn(2, 3, 8, 8)


@pytest.fixture
def conv() -> nn.Conv2d:
    return nn.Conv2d(3, 4, 3)


def test_autocast_computes_in_half(conv: nn.Conv2d) -> None:
    assert tuple(precision.HALF) == HALF_FORMATS
    for name, dtype in (*precision.HALF.items(), ("fp32", torch.float32)):
        with precision.autocast(CPU, name):
            assert conv(NCHW).dtype == dtype
        assert conv.weight.dtype == conv(NCHW).dtype == torch.float32


@pytest.mark.parametrize("on", (True, False))
def test_tf32_sets_convolutions_and_products(monkeypatch: pytest.MonkeyPatch, on: bool) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", not on)  # both are restored
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", not on)
    precision.set_tf32(on)
    assert torch.backends.cudnn.allow_tf32 is on
    assert torch.backends.cuda.matmul.allow_tf32 is on


def test_channels_last_changes_strides_and_no_value(conv: nn.Conv2d) -> None:
    assert precision.channels_last(NCHW, on=False) is NCHW
    expected, weight = conv(NCHW), conv.weight.detach().clone()
    assert conv.weight.stride() == (27, 9, 3, 1)
    assert precision.channels_last(conv) is conv
    assert conv.weight.stride() == (27, 1, 9, 3)
    assert torch.equal(conv.weight, weight)
    images = precision.channels_last(NCHW)
    assert images.stride() == (192, 1, 24, 3)
    assert torch.equal(images, NCHW)
    torch.testing.assert_close(conv(images), expected)


@pytest.mark.parametrize(
    "capability, half, sharded, tf32",
    [
        ((6, 0), "fp32", "fp32", "fp32"),  # P100
        ((7, 0), "fp16", "fp32", "fp32"),  # V100
        ((7, 5), "fp16", "fp32", "fp32"),  # T4
        ((8, 0), "bf16", "bf16", "tf32"),  # A100
        ((9, 0), "bf16", "bf16", "tf32"),  # H100
    ],
)
def test_half_is_the_format_of_the_gpu(
    capability: tuple[int, int], half: str, sharded: str, tf32: str, monkeypatch
) -> None:
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda **_: gpu)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    assert precision.resolve(rung("amp")).precision == half
    # Without loss scaling, small gradients would become 0 in fp16.
    assert precision.resolve(rung("sharded", gather_bf16=True)).precision == sharded
    assert precision.resolve(rung("device", precision="tf32")).precision == tf32
    assert precision.resolve(rung("baseline")) == rung("baseline")
    on_cpu = precision.resolve(rung("amp", device="cpu")).precision
    assert on_cpu == precision.half_format(CPU)


@pytest.mark.parametrize(
    "instructions, limit, half",
    [
        (("avx512_f",), "", "fp32"),  # AVX-512 alone emulates bf16
        (("avx512_bf16",), "", "bf16"),
        (("amx_bf16", "amx_fp16"), "ALL", "bf16"),
        (("avx512_bf16",), "AVX2", "fp32"),
        (("avx512_bf16",), "avx512_core", "fp32"),
        (("amx_bf16",), "AVX512_CORE_AMX", "bf16"),
        (("bf16",), "", "bf16"),  # Arm
    ],
)
def test_half_is_the_format_of_the_cpus_instructions(
    instructions: tuple[str, ...], limit: str, half: str, monkeypatch
) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: dict.fromkeys(instructions, True))
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
    monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", limit)
    assert precision.half_format(CPU) == half
    assert precision.has_units(CPU, "fp32") and not precision.has_units(CPU, "tf32")


@pytest.mark.skipif(
    os.environ.get("ONEDNN_MAX_CPU_ISA") != "AVX2", reason="make test-formats limits the CPU"
)
@pytest.mark.parametrize("name", precision.HALF)
def test_a_cpu_limited_to_avx2_has_no_units_for_16_bits(name: str) -> None:
    assert not precision.has_units(CPU, name)


@for_all(
    "name, parameters",
    [
        ("resnet18", 11_689_512),
        ("resnet34", 21_797_672),
        ("resnet50", 25_557_032),
        ("resnet101", 44_549_160),
        ("resnet152", 60_192_808),
    ],
)
def test_every_model_has_its_published_size(name: str, parameters: int) -> None:
    with torch.device("meta"):
        assert models.parameter_count(models.create(name, 1000)) == parameters


@pytest.mark.slow
@pytest.mark.parametrize("name", ("resnet18", "resnet50"))
def test_description_sums_to_the_model(name: str) -> None:
    model = models.create(name, 10)
    table = models.describe(model, 64)
    assert table["part"].iloc[0] == "conv1" and table["part"].iloc[-1] == "fc"
    assert table["output"].iloc[0] == "64 × 32 × 32" and table["output"].iloc[-1] == "10"
    assert table["parameters"].sum() == models.parameter_count(model)
    assert table["forward_gflop"].sum() == pytest.approx(models.forward_gflop(model, 64))
    assert (table.set_index("part")["forward_gflop"].loc[["conv1", "layer4", "fc"]] > 0).all()


def test_resnet50_has_its_published_flops() -> None:
    model = models.create("resnet50", 1000)
    assert models.forward_gflop(model, 224) == pytest.approx(8.18, abs=0.005)
    assert next(model.parameters()).device == CPU  # counting does not move the model
    ratio = models.forward_gflop(model, 128) / models.forward_gflop(model, 64)
    assert ratio == pytest.approx(4, rel=0.01)


@pytest.mark.parametrize("name, channels", [("resnet18", 64), ("resnet50", 256)])
def test_blocks_start_as_the_identity(name: str, channels: int) -> None:
    block = models.create(name, 10).layer1[1].eval()
    images = torch.rand(1, channels, 4, 4)
    assert torch.equal(block(images), images)


def test_an_unknown_model_lists_the_valid_ones() -> None:
    with pytest.raises(ValueError, match="no model 'vgg16': choose ") as error:
        models.create("vgg16", 10)
    assert all(name in str(error.value) for name in CHOICES["model"])
