"""Number formats, memory layout and networks: what they change in tensors."""

import pytest
import torch

from course.config import HALF_FORMATS, rung
from course.training import models, precision

# They depend on the 16-bit hardware of the CPU: make test-formats.
pytestmark = pytest.mark.formats

CPU = torch.device("cpu")


def test_the_half_formats_of_configs_have_types() -> None:
    assert tuple(precision.HALF) == HALF_FORMATS


@pytest.mark.parametrize(
    "capability, half, sharded, tf32",
    [
        ((7, 0), "fp16", "fp32", "fp32"),  # V100
        ((7, 5), "fp16", "fp32", "fp32"),  # T4
        ((8, 0), "bf16", "bf16", "tf32"),  # A100
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
        (("avx512_bf16",), "AVX2", "fp32"),
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


def test_resnet50_has_its_published_flops() -> None:
    model = models.create("resnet50", 1000)
    assert models.forward_gflop(model, 224) == pytest.approx(8.18, abs=0.005)
    assert next(model.parameters()).device == CPU  # counting does not move the model
    ratio = models.forward_gflop(model, 128) / models.forward_gflop(model, 64)
    assert ratio == pytest.approx(4, rel=0.01)
