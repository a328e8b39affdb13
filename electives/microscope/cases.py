"""The operations that are measured: a product of two matrices, and a convolution."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from course.training import channels_last
from electives._compat import fp8_product, int8_product
from trainspeed.formats import FORMATS
from trainspeed.timing import number_format

DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp8": torch.float8_e4m3fn,
    "int8": torch.int8,
}


@dataclass(frozen=True)
class Product:
    """The product of matrices (m, k) and (k, n), both stored row by row."""

    m: int
    n: int
    k: int
    dtype: str = "bf16"

    def __str__(self) -> str:
        return f"product, M = {self.m:,}, N = {self.n:,}, K = {self.k:,}, {self.dtype}"

    @property
    def flop(self) -> int:
        return 2 * self.m * self.n * self.k

    def call(self, device: torch.device, *, zeros: bool = False) -> Callable[[], torch.Tensor]:
        """Create the matrices, and return the product as a call."""
        a = _matrix((self.m, self.k), self.dtype, device, zeros)
        if self.dtype in ("fp8", "int8"):  # they take b only column by column
            b = _matrix((self.n, self.k), self.dtype, device, zeros).t()
        else:
            b = _matrix((self.k, self.n), self.dtype, device, zeros)
        if self.dtype == "int8":
            return lambda: int8_product(a, b)
        if self.dtype == "fp8":
            scale = torch.ones((), device=device)
            # The data sheet's rate is for sums that round a little more.
            options = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
            return lambda: fp8_product(a, b, scale, scale, **options)
        return lambda: a @ b


@dataclass(frozen=True)
class Convolution:
    """A convolution of square images, padded to keep their size.

    With as many groups as inputs, it is depthwise: each output has one input channel.
    """

    inputs: int
    outputs: int
    dtype: str = "bf16"
    layout: str = "NHWC"
    size: int = 3
    px: int = 56
    images: int = 64
    groups: int = 1

    def __str__(self) -> str:
        groups = f", {self.groups} groups" if self.groups > 1 else ""
        return f"convolution, {self.inputs} to {self.outputs}{groups}, {self.layout}, {self.dtype}"

    @property
    def flop(self) -> int:
        pixels = self.images * self.px**2
        return 2 * pixels * self.size**2 * self.inputs // self.groups * self.outputs

    def call(self, device: torch.device) -> Callable[[], torch.Tensor]:
        """Create the tensors, and return the convolution as a call."""
        kind = {"device": device, "dtype": dtype_of(self.dtype)}
        images = torch.randn(self.images, self.inputs, self.px, self.px, **kind)
        shape = (self.outputs, self.inputs // self.groups, self.size, self.size)
        weights = torch.randn(shape, **kind)
        images, weights = (
            channels_last(tensor, self.layout == "NHWC") for tensor in (images, weights)
        )
        padding, groups = self.size // 2, self.groups
        return lambda: torch.conv2d(images, weights, padding=padding, groups=groups)


Case = Product | Convolution


def row(case: Case) -> dict[str, Any]:
    """Return the case as columns: what, and its fields."""
    return {"what": type(case).__name__.lower()} | asdict(case)


def dtype_of(name: str) -> torch.dtype:
    """Return the type in which a format's numbers are stored.

    Raises:
        ValueError: an unknown name.
    """
    if name not in DTYPES:
        raise ValueError(f"dtype={name!r}: choose {', '.join(DTYPES)}")
    return DTYPES[name]


def tf32_switches(name: str, device: torch.device) -> AbstractContextManager:
    """Set PyTorch's switches for TF32 as this format needs them."""
    return number_format(device, name) if name in FORMATS else nullcontext()


def _matrix(shape: tuple[int, int], dtype: str, device: torch.device, zeros: bool) -> torch.Tensor:
    if zeros:
        matrix = torch.zeros(shape, device=device)
    elif dtype == "int8":
        matrix = torch.randint(-128, 128, shape, device=device)
    else:
        matrix = torch.randn(shape, device=device)
    return matrix.to(dtype_of(dtype))
