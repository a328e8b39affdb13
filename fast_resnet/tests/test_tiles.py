"""The tiles of the products fit the shared memory of cards on which they were not run."""

from __future__ import annotations

import inspect
import math
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torchvision.models import resnet50

from fast_resnet.model import is_interpreted

triton = pytest.importorskip("triton", reason="the kernels are written in Triton")
from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.compiler import ASTSource  # noqa: E402
from triton.tools.tensor_descriptor import TensorDescriptor  # noqa: E402

from fast_resnet import products  # noqa: E402
from fast_resnet.network import Segments  # noqa: E402

# KB that a block may use (CUDA's programming guide, compute capabilities):
# A100, Ada, Hopper, B200, consumer Blackwell
LIMITS = {80: 163, 89: 99, 90: 227, 100: 227, 120: 99}
README = Path(__file__).resolve().parent.parent / "README.md"
TYPES = {torch.float16: "*fp16", torch.float32: "*fp32", torch.uint8: "*u8"}


def launches(tma: bool) -> list[tuple]:
    """Return the product kernels that ResNet-50 launches with its largest tiles."""
    found: dict[tuple, tuple] = {}

    def launch(kernel: Any, grid: tuple, *arguments: Any, **options: int) -> None:
        if arguments[-2:] == (128, 64):  # BN and BK
            flag, _, rows = arguments[-5:-2]
            found[kernel.fn, flag, rows] = kernel, arguments, options

    with torch.device("meta"):
        images = torch.empty(2, 4, 224, 224, dtype=torch.float16)
        segments = Segments(resnet50().to(memory_format=torch.channels_last), torch.float16)
    with (
        mock.patch.object(products, "launch", launch),
        mock.patch("fast_resnet.rows.launch"),
        mock.patch.object(products, "has_tma", lambda device: tma),
        torch.no_grad(),
    ):
        segments.rehearse(images.to(memory_format=torch.channels_last))
    return [*found.values()]


def compiled(kernel: Any, arguments: tuple, options: dict[str, int], capability: int) -> Any:
    """Compile a launch for a card that need not be here."""
    signature, constants, attributes = {}, {}, {}
    parameters = inspect.signature(kernel.fn).parameters.values()
    for at, (parameter, value) in enumerate(zip(parameters, arguments)):
        kind = TYPES[value.dtype] if torch.is_tensor(value) else "i32"
        if isinstance(value, TensorDescriptor):
            kind = f"tensordesc<fp16{value.block_shape}>"
        if parameter.annotation is not inspect.Parameter.empty:
            kind, constants[parameter.name] = "constexpr", value
        elif isinstance(value, float):
            kind = "fp32"
        elif kind != "i32" or value % 16 == 0:
            attributes[(at,)] = [["tt.divisibility", 16]]
        signature[parameter.name] = kind
    source = ASTSource(kernel, signature, constants, attributes)
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


@pytest.mark.slow
@pytest.mark.skipif(is_interpreted(), reason="needs Triton's compiler")
@pytest.mark.parametrize("capability", LIMITS)
def test_largest_tiles_fit_the_shared_memory_of_a_block(capability: int) -> None:
    found = launches(tma=capability >= 90)
    assert len(found) == 6  # conv3, dgrad1 and dz, two kinds each
    sizes = [compiled(*launch, capability).metadata.shared for launch in found]
    used = math.ceil(max(sizes) / 1024)
    assert 0 < used <= LIMITS[capability], sizes
    assert re.search(rf"\b{used} KB", README.read_text(encoding="utf-8")), used
