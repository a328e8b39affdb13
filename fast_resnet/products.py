"""The 1x1 convolutions as products of matrices, forward and backward; formulas.py derives them.

Tensors are [M, K] and [M, N]: pixels x channels; W is [N, K].
"""

from dataclasses import dataclass

import torch
import triton
from torch import nn

from fast_resnet.kernels.products import (
    conv3_kernel,
    dgrad1_kernel,
    dz_kernel,
    gram_bwd_kernel,
    gram_stats_kernel,
)
from fast_resnet.state import Norm, State
from fast_resnet.tuning import SPLITS, Choices


def tall_product(choices: Choices, kind: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a' b in fp32 [n, k], of [M, n] and [M, k] in half precision.

    The result is small and M large: split over M, more processors find work.
    """

    def whole():
        if a.dtype == torch.float32:
            return a.t() @ b
        if not a.is_cuda:  # torch's products on the CPU know no other type of result
            return a.t().float() @ b.float()
        return torch.mm(a.t(), b, out_dtype=torch.float32)

    def in_parts(parts):
        x, y = a.view(parts, -1, a.shape[1]), b.view(parts, -1, b.shape[1])
        return torch.bmm(x.transpose(1, 2), y, out_dtype=torch.float32).sum(0)

    candidates = {"mm": whole}
    for parts in SPLITS if a.is_cuda and a.dtype != torch.float32 else ():
        if a.shape[0] % parts == 0:
            candidates[f"bmm{parts}"] = lambda parts=parts: in_parts(parts)
    return choices.run(kind, a.shape[0], (a.shape[1], b.shape[1]), candidates)


def weight_gradient(choices: Choices, dy: torch.Tensor, x: torch.Tensor, out: torch.Tensor) -> None:
    """out [N, K] = dy' x, in half precision; the sum over M in fp32."""

    def in_parts(parts):
        p, q = dy.view(parts, -1, dy.shape[1]), x.view(parts, -1, x.shape[1])
        out.copy_(torch.bmm(p.transpose(1, 2), q, out_dtype=torch.float32).sum(0))

    candidates = {"mm": lambda: torch.mm(dy.t(), x, out=out)}
    for parts in SPLITS if dy.is_cuda and dy.dtype != torch.float32 else ():
        if dy.shape[0] % parts == 0:
            candidates[f"bmm{parts}"] = lambda parts=parts: in_parts(parts)
    choices.run("wgrad1", dy.shape[0], (dy.shape[1], x.shape[1]), candidates)


@dataclass
class Linear:
    """A 1x1 convolution with its BatchNorm, and what their backward needs of one step."""

    conv: nn.Conv2d
    norm: Norm
    z: torch.Tensor  # [M, K], the input
    total: torch.Tensor  # [K], its column sums
    WG: torch.Tensor  # [N, K], fp32: weights x Gram matrix


def _find_statistics(
    choices: Choices,
    W: torch.Tensor,
    WG: torch.Tensor,
    total: torch.Tensor,
    norm: Norm,
    M: int,
) -> None:
    """Mean, deviation, scale and shift of y = z W', into its norm; the running ones, too."""
    (N, K), (BN, BK) = W.shape, choices.small_tile(W)
    choices.launch(
        gram_stats_kernel,
        (N // BN,),
        W,
        WG,
        total,
        norm.gamma,
        norm.beta,
        norm.running_mean,
        norm.running_var,
        norm.scale,
        norm.shift,
        norm.mean,
        norm.rstd,
        M,
        norm.eps,
        norm.momentum,
        K,
        BN,
        BK,
        num_warps=4,
    )


def linear_norm(
    state: State,
    choices: Choices,
    z: torch.Tensor,
    total: torch.Tensor,
    conv: nn.Conv2d,
    norm: Norm,
    identity: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None, Linear]:
    """relu(bn(z W') + identity) [M, N] and its mask [M, N/8]; without identity bn(z W') alone."""
    W = state.weight[conv].flatten(1)
    (N, K), M = W.shape, z.shape[0]
    G = tall_product(choices, "gram", z, z)
    WG = state.rounded[conv] @ G  # statistics of the weights that are used, not of unrounded ones
    _find_statistics(choices, W, WG, total, norm, M)
    out = torch.empty(M, N, device=z.device, dtype=z.dtype)
    joins = identity is not None
    bits = torch.empty(M, N // 8, device=z.device, dtype=torch.uint8) if joins else None

    def launch(BM, BN, BK, options):
        choices.launch(
            conv3_kernel,
            (triton.cdiv(M, BM) * (N // BN),),
            *(z, W, norm.scale, norm.shift),
            *(identity if joins else out, out, bits if joins else out),
            *(M, K, N, BM, BN, BK, joins),
            **options,
        )

    choices.run("conv3", M, (K, N, joins), choices.product_candidates(K, N, launch))
    return out, bits, Linear(conv, norm, z, total, WG)


def _norm_gradients(
    state: State, choices: Choices, P: torch.Tensor, linear: Linear, d_total: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of conv and norm, into the state; A, B and c of dz = d A + z B + c."""
    conv, norm = linear.conv, linear.norm
    W = state.weight[conv].flatten(1)
    (N, K), M = W.shape, linear.z.shape[0]
    BN, BK = choices.small_tile(W)
    A, KW = torch.empty_like(W), torch.empty_like(W)
    constant = state.workspace.named((conv, "constant"), K)
    choices.launch(
        gram_bwd_kernel,
        (N // BN,),
        P,
        W,
        linear.WG,
        linear.total,
        d_total,
        norm.mean,
        norm.rstd,
        norm.scale,
        norm.gradients,
        norm.gradients[N:],
        state.weight_gradient[conv],
        A,
        KW,
        constant,
        M,
        K,
        BN,
        BK,
        num_warps=4,
    )
    return A, W.t() @ KW, constant


def linear_norm_backward(
    state: State,
    choices: Choices,
    d: torch.Tensor,
    d_total: torch.Tensor,
    linear: Linear,
    below: tuple[torch.Tensor, Norm] | None = None,
) -> torch.Tensor:
    """The gradient of z [M, K]; those of conv and norm go into the state.

    d [M, N] is the gradient of bn(z W'), d_total [N] its column sums. below = (y, norm) says that
    z = relu(bn(y)): the gradients of that norm are then made on the way.
    """
    norm, z = linear.norm, linear.z
    (M, K), N = z.shape, d.shape[1]
    P = tall_product(choices, "dwgram", d, z)
    A, B, constant = _norm_gradients(state, choices, P, linear, d_total)
    dz = torch.empty_like(z)
    y, under = below or (z, norm)
    norm_below = y, under.sums, under.gamma, under.beta, under.gradients

    def launch(BM, BN, BK, options):
        choices.launch(
            dz_kernel,
            (triton.cdiv(M, BM) * (K // BN),),
            *(d, A, z, B, constant, dz),
            *norm_below,
            *(M, under.eps, N, K, BM, BN, BK, min(BK, K)),
            below is not None,
            **options,
        )

    touched = (under.gradients,) if below else ()
    candidates = choices.product_candidates(N, K, launch)
    choices.run("dz", M, (N, K, below is not None), candidates, touched)
    return dz


def input_gradient(
    choices: Choices,
    dy: torch.Tensor,
    W: torch.Tensor,
    shortcut: torch.Tensor,
    bits: torch.Tensor,
    total: torch.Tensor,
    height: int,
    strided: bool,
) -> torch.Tensor:
    """mask * (dy W + shortcut) [M, N] for dy [M, K], W [K, N]; total [N] += its column sums.

    strided: shortcut holds every second pixel of images of height x height.
    """
    (M, K), N = dy.shape, W.shape[1]
    d = torch.empty(M, N, device=dy.device, dtype=dy.dtype)

    def launch(BM, BN, BK, options):
        choices.launch(
            dgrad1_kernel,
            (triton.cdiv(M, BM) * (N // BN),),
            *(dy, W, shortcut, bits, d, total),
            *(M, K, N, BM, BN, BK, strided, height),
            **options,
        )

    candidates = choices.product_candidates(K, N, launch)
    choices.run("dgrad1", M, (K, N, strided), candidates, (total,))
    return d
