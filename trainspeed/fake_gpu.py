"""Fake tensors on the CPU, on which operators keep for backward what they keep on a GPU.

Autograd asks a real driver about tensors on a GPU, also if they are fake, so that these are on the
CPU. There, attention, dropout and autocast would choose other kernels and other types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, reduce
from typing import Any

import torch

from trainspeed._compat import FakeTensorMode, efficient_attention, math_attention

ALIGNED = 16  # numbers: rows of an attention bias begin at multiples of it
# What autocast computes in fp32 on a GPU, and not on a CPU
# (https://docs.pytorch.org/docs/stable/amp.html#cuda-ops-that-can-autocast-to-float32).
IN_FP32 = (
    "acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan softplus "
    "pow.Tensor_Tensor pow.Tensor_Scalar pow.Scalar layer_norm native_layer_norm group_norm "
    "rms_norm frobenius_norm.dim nuclear_norm nuclear_norm.dim norm.Scalar norm.ScalarOpt_dim "
    "cosine_similarity dist pdist renorm logsumexp softmax.int log_softmax.int cumprod cumsum "
    "sum sum.dim_IntList"
)
_library: list[torch.library.Library] = []  # of the outermost context


@contextmanager
def fake_tensors() -> Iterator[None]:
    """Create tensors with a size and a type in this context, but without numbers."""
    outermost = not _library
    try:
        if outermost:
            _library.append(_kernels())
        with torch.random.fork_rng(devices=[]), FakeTensorMode(allow_non_fake_inputs=True):
            yield
    finally:
        if outermost:
            _library.clear()  # PyTorch's own kernels return


def _kernels() -> torch.library.Library:
    """Replace kernels of the CPU, for as long as the result exists."""
    library = torch.library.Library("aten", "IMPL")
    for name in IN_FP32.split():
        operator = reduce(getattr, name.split("."), torch.ops.aten)
        library.impl(name, partial(_in_fp32, operator), "AutocastCPU")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    library.impl("dropout", _dropout, "AutogradCPU")
    return library


def _in_fp32(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    def cast(value: Any) -> Any:
        is_half = isinstance(value, torch.Tensor) and value.dtype in (torch.half, torch.bfloat16)
        return value.float() if is_half else value

    with torch.autocast("cpu", enabled=False):
        return operator(*map(cast, args), **{name: cast(kwargs[name]) for name in kwargs})


def _attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **options: Any,
) -> torch.Tensor:
    """Compute attention by the GPU's fused kernel, which stores no (N, heads, L, L) matrix.

    The kernel needs a bias, such as relative positions, that is padded to rows of 16. Groups of
    queries (`enable_gqa`) share keys and values without a copy.
    """
    if query.dim() != 4:  # which the fused kernels refuse
        tensors = query, key, value, attn_mask
        return math_attention(*tensors, dropout_p, is_causal, **options)[0]
    if attn_mask is not None:
        wide = attn_mask.shape[-1]
        attn_mask = attn_mask.to(query.dtype)
        attn_mask = torch.nn.functional.pad(attn_mask, (0, -wide % ALIGNED))[..., :wide]
        attn_mask = attn_mask.expand(*query.shape[:2], -1, -1)
    for_backward, scale = torch.is_grad_enabled(), options.get("scale")
    inputs = query, key, value, attn_mask
    return efficient_attention(*inputs, for_backward, dropout_p, is_causal, scale=scale)[0]


def _dropout(values: torch.Tensor, p: float, train: bool) -> torch.Tensor:
    """Keep a byte for each value, as on a GPU; on a CPU, the mask is as large as the values."""
    if not train or p in (0, 1):
        return values if not train or p == 0 else values * 0
    return torch.native_dropout(values, p, True)[0]
