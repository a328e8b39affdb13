"""One operation under the microscope: a product of two matrices, or a convolution."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from typing import Any

import torch

from course.analysis.roofline.timing import FORMATS, number_format
from labs.day1_3_channels_last.convolution import LAYOUTS

DTYPES = {"fp64": torch.float64, "int8": torch.int8, "fp8": torch.float8_e4m3fn}
STORED = ("NN", "NT", "TN", "TT")


@dataclass(frozen=True)
class Product:
    """c = a · b of (m, k) and (k, n).

    `stored`: which of a and b lie in memory column by column (T) instead of row by row (N).
    """

    m: int
    n: int
    k: int
    dtype: str = "bf16"
    stored: str = "NN"

    @property
    def flop(self) -> int:
        """Multiplications and additions."""
        return 2 * self.m * self.n * self.k

    def call(self, device: torch.device, *, zeros: bool = False) -> Callable[[], torch.Tensor]:
        """The product as a call, with its matrices made beforehand."""
        shapes = ((self.m, self.k), (self.k, self.n))
        stored = "NT" if self.dtype in ("fp8", "int8") else self.stored  # all that these take
        a, b = (
            _matrix(shape, self.dtype, kind == "T", device, zeros)
            for shape, kind in zip(shapes, stored)
        )
        if self.dtype == "int8":
            return lambda: torch._int_mm(a, b)
        if self.dtype == "fp8":
            one = torch.ones((), device=device)
            # The data sheet's rate is that of sums which round a little more.
            how = {"out_dtype": torch.bfloat16, "use_fast_accum": True}
            return lambda: torch._scaled_mm(a, b, one, one, **how)
        return lambda: a @ b


@dataclass(frozen=True)
class Convolution:
    """A convolution of 64 images with as many rows as columns of pixels, padded to their size."""

    inputs: int
    outputs: int
    dtype: str = "bf16"
    layout: str = "NHWC"
    groups: int = 1
    size: int = 3
    px: int = 56
    images: int = 64

    @property
    def flop(self) -> int:
        """Multiplications and additions, of the forward pass."""
        pixels = self.images * self.px**2
        return 2 * pixels * self.size**2 * self.inputs // self.groups * self.outputs

    def call(self, device: torch.device) -> Callable[[], torch.Tensor]:
        """The convolution as a call, with its tensors made beforehand."""
        kind = {"device": device, "dtype": dtype_of(self.dtype)}
        images = torch.randn(self.images, self.inputs, self.px, self.px, **kind)
        shape = self.outputs, self.inputs // self.groups, self.size, self.size
        weights = torch.randn(shape, **kind)
        images, weights = (
            each.to(memory_format=LAYOUTS[self.layout]) for each in (images, weights)
        )
        padding, groups = self.size // 2, self.groups
        return lambda: torch.conv2d(images, weights, padding=padding, groups=groups)


Case = Product | Convolution


def row(case: Case) -> dict[str, Any]:
    """The case as columns: what, and its own fields."""
    return {"what": type(case).__name__.lower()} | asdict(case)


def dtype_of(name: str) -> torch.dtype:
    """The type in which a format's numbers are stored.

    Raises:
        ValueError: an unknown name.
    """
    known = DTYPES | {
        "fp32": torch.float32,
        "tf32": torch.float32,
        "bf16": torch.bfloat16,
        "fp16": torch.float16,
    }
    if name not in known:
        raise ValueError(f"dtype={name!r}: choose {', '.join(known)}")
    return known[name]


def in_format(name: str, device: torch.device) -> Any:
    """PyTorch's switches for TF32, set for this format; as they were after."""
    return number_format(device, name) if name in FORMATS else nullcontext()


def _matrix(
    shape: tuple[int, int], dtype: str, turned: bool, device: torch.device, zeros: bool
) -> torch.Tensor:
    shape = shape[::-1] if turned else shape
    if zeros:
        made = torch.zeros(shape, device=device)
    elif dtype == "int8":
        made = torch.randint(-128, 128, shape, device=device)
    else:
        made = torch.randn(shape, device=device)
    made = made.to(dtype_of(dtype))
    return made.t() if turned else made
