"""The 1x1 convolutions as matrix products, each fused with the operations around it.

formulas.py derives the formulas and defines M, K, N, s, G, P, k1, k2 and k3. Tensors are [M, K] and
[M, N]: pixels x channels; W is [N, K]. Each program computes a tile of BM rows and BN columns, and
loops over the depth in steps of BK. Triton inlines the functions that a kernel calls, so a tile
stays in registers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import nn
from triton.tools.tensor_descriptor import TensorDescriptor

from fast_resnet.formulas import product
from fast_resnet.rows import (
    BETA,
    DBETA,
    DGAMMA,
    GAMMA,
    IS_INTERPRETED,
    TOTAL,
    affine,
    corrections,
    launch,
    pack,
    relu,
    unpack,
    update_running,
)
from fast_resnet.state import ROWS, Norm, State

CONSTANT, SCALE, SHIFT, OWN_MEAN, RSTD = (
    tl.constexpr(ROWS.index(n)) for n in ("constant", "scale", "shift", "mean", "rstd")
)


@triton.jit
def corner(N, BM: tl.constexpr, BN: tl.constexpr):
    """Return the first row and column of this program's tile in a result of N columns.

    Consecutive programs compute neighbouring columns, so they share rows of the left factor.
    """
    return (tl.program_id(0) // (N // BN)) * BM, (tl.program_id(0) % (N // BN)) * BN


@triton.jit
def tile(M, N, BM: tl.constexpr, BN: tl.constexpr):
    """Return the rows and columns of this program's tile, a mask of rows, and offsets in [M, N]."""
    row, col = corner(N, BM, BN)
    rows, cols = row + tl.arange(0, BM), col + tl.arange(0, BN)
    return rows, cols, rows[:, None] < M, rows[:, None] * N + cols[None, :]


@triton.jit
def bits_at(rows, N, N8, BN: tl.constexpr):
    """Return the offsets of a tile's bits in a mask [M, N8 = N/8]. N8 is an argument because Triton
    checks only arguments for divisibility by 16; with N // 8 it would access single bytes."""
    cols8 = (tl.program_id(0) % (N // BN)) * (BN // 8) + tl.arange(0, BN // 8)
    return rows[:, None] * N8 + cols8[None, :]


@triton.jit
def multiply(
    acc, A, B, M, DEPTH, N, TRANSPOSED: tl.constexpr, HAS_TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Return acc + A B for a tile: A [M, DEPTH], B [DEPTH, N] (TRANSPOSED: stored [N, DEPTH]).

    With HAS_TMA, A and B are descriptors: their copies to shared memory need no registers and no
    masks. Otherwise they are addresses.
    """
    row, col = corner(N, BM, BN)
    rows, cols = row + tl.arange(0, BM), col + tl.arange(0, BN)
    for k0 in range(0, DEPTH, BK):
        if HAS_TMA:
            a = A.load([row, k0])
            b = B.load([col, k0]).T if TRANSPOSED else B.load([k0, col])
        else:
            k = k0 + tl.arange(0, BK)
            a = tl.load(A + rows[:, None] * DEPTH + k[None, :], mask=rows[:, None] < M, other=0.0)
            if TRANSPOSED:
                b = tl.load(B + k[:, None] + cols[None, :] * DEPTH)
            else:
                b = tl.load(B + k[:, None] * N + cols[None, :])
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def store(OUT, v, M, N, HAS_TMA: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    """Store a tile of OUT [M, N], in OUT's type."""
    if HAS_TMA:
        OUT.store(corner(N, BM, BN), v.to(OUT.dtype))
    else:
        _, _, keep, at = tile(M, N, BM, BN)
        tl.store(OUT + at, v.to(OUT.dtype.element_ty), mask=keep)


@triton.jit
def conv3_kernel(
    X, W, OUT, NORM, IDENTITY, BITS, T, M, K, N, N8,
    JOINS: tl.constexpr, HAS_TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute OUT = relu((X W') * scale + shift + IDENTITY) [M, N], and its mask BITS [M, N/8].

    Without JOINS (for the shortcut's convolution), there is no identity and no ReLU.
    """
    rows, cols, keep, at = tile(M, N, BM, BN)
    if JOINS:  # start this load before the loop, so that it overlaps with the loop
        identity = tl.load(IDENTITY + at, mask=keep, other=0.0)
    acc = tl.zeros((BM, BN), tl.float32)
    acc = multiply(acc, X, W, M, K, N, True, HAS_TMA, BM, BN, BK)
    scale, shift = tl.load(NORM + SCALE * T + cols), tl.load(NORM + SHIFT * T + cols)
    v = acc * scale[None, :] + shift[None, :]
    if JOINS:
        v = relu(v + identity.to(tl.float32))
        tl.store(BITS + bits_at(rows, N, N8, BN), pack(v > 0.0, BM, BN), mask=keep)
    store(OUT, v, M, N, HAS_TMA, BM, BN)


@triton.jit
def load_strided(SMALL, rows, cols, keep, N, H):
    """Load rows of H x H images: SMALL stores every second row and column; the rest is 0."""
    h = (rows // H) % H
    w = rows % H
    small = ((rows // (H * H)) * (H // 2) + h // 2) * (H // 2) + w // 2
    even = keep & ((h % 2 == 0) & (w % 2 == 0))[:, None]
    return tl.load(SMALL + small[:, None] * N + cols[None, :], mask=even, other=0.0)


@triton.jit
def dgrad1_kernel(
    DY, W, D, SHORTCUT, BITS, NORM, T, M, K, N, N8, H,
    STRIDED: tl.constexpr, HAS_TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute D = mask * (DY W + SHORTCUT) [M, N]; add its column sums to the table's DBETA.

    D is the gradient of a block's input, through conv1 and the shortcut, times the ReLU mask of the
    block below. STRIDED: SHORTCUT stores only every second pixel of the H x H images.
    """
    rows, cols, keep, at = tile(M, N, BM, BN)
    if STRIDED:
        shortcut = load_strided(SHORTCUT, rows, cols, keep, N, H)
    else:
        shortcut = tl.load(SHORTCUT + at, mask=keep, other=0.0)
    byte = tl.load(BITS + bits_at(rows, N, N8, BN), mask=keep, other=0)
    acc = tl.zeros((BM, BN), tl.float32)
    acc = multiply(acc, DY, W, M, K, N, False, HAS_TMA, BM, BN, BK)
    v = acc + shortcut.to(tl.float32)
    d = tl.where(unpack(byte, BM, BN) > 0, v, 0.0).to(shortcut.dtype)
    store(D, d, M, N, HAS_TMA, BM, BN)
    tl.atomic_add(NORM + DBETA * T + cols, tl.sum(d.to(tl.float32), 0))


@triton.jit
def dz_kernel(
    D, Z, A, B, OUT, NORM, Y, T, M, N, K, eps,
    WITH_NORM: tl.constexpr, HAS_TMA: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    """Compute OUT = D A + Z B + c [M, K], rounded once: one accumulator sums both products.

    NORM is the BatchNorm below, whose output is Z. WITH_NORM: Z = relu(bn(Y)), and the kernel also
    adds the gradients of gamma and beta while the tile is in registers.
    """
    rows, cols, keep, at = tile(M, K, BM, BN)
    if WITH_NORM:
        y = tl.load(Y + at, mask=keep, other=0.0)
    acc = tl.zeros((BM, BN), tl.float32)
    acc = multiply(acc, D, A, M, N, K, False, HAS_TMA, BM, BN, BK)
    acc = multiply(acc, Z, B, M, K, K, False, HAS_TMA, BM, BN, BK)
    o = (acc + tl.load(NORM + CONSTANT * T + cols)[None, :]).to(Y.dtype.element_ty)
    store(OUT, o, M, K, HAS_TMA, BM, BN)
    if WITH_NORM:
        mean, var, rstd, scale, shift = affine(NORM, T, cols, M, eps)
        yf = y.to(tl.float32)
        positive = keep & (yf * scale[None, :] + shift[None, :] > 0.0)
        g = tl.where(positive, o.to(tl.float32), 0.0)
        dbeta = tl.sum(g, 0)
        tl.atomic_add(NORM + DBETA * T + cols, dbeta)
        # The mean is subtracted from the sum of a tile, not in it: that takes 50 fewer registers.
        tl.atomic_add(NORM + DGAMMA * T + cols, (tl.sum(g * yf, 0) - mean * dbeta) * rstd)


@triton.jit
def gram_product_kernel(W, G, WG, N, K, BN: tl.constexpr, BJ: tl.constexpr, BK: tl.constexpr):
    """Compute WG = W G [N, K] in about fp32, from two products in TF32.

    TF32 has fp16's ten bits, so W is exact in it, and G is the sum of two such numbers up to its
    last two bits: the error is that of a loop in fp32.
    """
    c, j = tl.program_id(0) * BN + tl.arange(0, BN), tl.program_id(1) * BJ + tl.arange(0, BJ)
    acc = tl.zeros((BN, BJ), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        w = tl.load(W + c[:, None] * K + k[None, :]).to(tl.float32)
        g = tl.load(G + k[:, None] * K + j[None, :])
        high = (g.to(tl.int32, bitcast=True) & -(2**13)).to(tl.float32, bitcast=True)
        acc = tl.dot(w, high, acc, input_precision="tf32")
        acc = tl.dot(w, g - high, acc, input_precision="tf32")
    tl.store(WG + c[:, None] * K + j[None, :], acc)


@triton.jit
def row_products(W, OTHER, c, K, BN: tl.constexpr, BK: tl.constexpr):
    """Return the sums over k of W * OTHER, both [N, K], in rows c: the diagonal of W OTHER'."""
    total = tl.zeros((BN,), tl.float32)
    for k0 in range(0, K, BK):
        at = c[:, None] * K + (k0 + tl.arange(0, BK))[None, :]
        total += tl.sum(tl.load(W + at).to(tl.float32) * tl.load(OTHER + at), 1)
    return total


@triton.jit
def gram_stats_kernel(
    W, WG, NORM, BELOW, T, M, K, eps, momentum, BN: tl.constexpr, BK: tl.constexpr
):
    """Compute the statistics of y = z W' without y, from BELOW's TOTAL, s = sum(z), and WG."""
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.zeros((BN,), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        w = tl.load(W + c[:, None] * K + k[None, :]).to(tl.float32)
        m += tl.sum(w * tl.load(BELOW + TOTAL * T + k)[None, :], 1)
    mean = m / M
    var = relu(row_products(W, WG, c, K, BN, BK) / M - mean * mean)
    rstd = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(NORM + GAMMA * T + c) * rstd
    tl.store(NORM + SCALE * T + c, scale)
    tl.store(NORM + SHIFT * T + c, tl.load(NORM + BETA * T + c) - mean * scale)
    tl.store(NORM + OWN_MEAN * T + c, mean)
    tl.store(NORM + RSTD * T + c, rstd)
    update_running(NORM, T, c, mean, var, M, momentum)


@triton.jit
def gram_bwd_kernel(
    P, W, WG, NORM, D_NORM, BELOW, DW, A, KW, T, M, K, BN: tl.constexpr, BK: tl.constexpr
):
    """Compute dgamma, dbeta, dW, and dz's factors from P = d'z and D_NORM's DBETA, sum(d).

    dz = d A + z (W' KW) + BELOW's CONSTANT. CONSTANT stays in fp32, because rounding would shift
    every row by the same amount.
    """
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    mean, rstd = tl.load(NORM + OWN_MEAN * T + c), tl.load(NORM + RSTD * T + c)
    k1, total = tl.load(NORM + SCALE * T + c), tl.load(D_NORM + DBETA * T + c)
    dgamma = rstd * (row_products(W, P, c, K, BN, BK) - mean * total)
    k2, k3 = corrections(k1, rstd, mean, total, dgamma, M)
    tl.store(NORM + DBETA * T + c, total)
    tl.store(NORM + DGAMMA * T + c, dgamma)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        at = c[:, None] * K + k[None, :]
        w = tl.load(W + at).to(tl.float32)
        dw = k1[:, None] * tl.load(P + at) - k3[:, None] * tl.load(WG + at)
        dw -= k2[:, None] * tl.load(BELOW + TOTAL * T + k)[None, :]
        tl.store(DW + at, dw.to(DW.dtype.element_ty))
        tl.store(A + at, (k1[:, None] * w).to(A.dtype.element_ty))
        tl.store(KW + at, (-k3[:, None] * w).to(KW.dtype.element_ty))
        tl.atomic_add(BELOW + CONSTANT * T + k, tl.sum(-k2[:, None] * w, 0))


def has_tma(device: torch.device) -> bool:
    """Return whether the GPU copies tiles by descriptor: the tensor memory accelerator of Hopper
    and newer ones. Elsewhere, descriptors would take more registers than addresses."""
    if device.type != "cuda":
        return IS_INTERPRETED
    return torch.cuda.get_device_capability(device) >= (9, 0)


def product_launch(
    kernel,
    rows: int,
    stages: int,
    depth: int,
    lefts: list[torch.Tensor],
    rights: list[torch.Tensor],
    out: torch.Tensor,
    *arguments,
    transposed: bool = False,
) -> None:
    """Launch a kernel that computes `out` [M, columns] from products, the deepest of `depth`.

    The kernel takes the left factors, the right ones (transposed: [columns, depth]), `out`,
    `arguments`, and the size of a tile.
    rows: a tile's height, 128, or 64 if the epilogue reads other tensors, which need registers.
    stages: how many copies to shared memory may be in flight, with TMA.
    """
    M, columns = out.shape
    BM, BN, BK = (1024, 256, 256) if IS_INTERPRETED else (rows, 128, 64)
    BN, BK = min(BN, columns), min(BK, depth, columns)
    tensors, tma = [*lefts, *rights, out], has_tma(out.device)
    if tma:
        of_rights = [BN, BK] if transposed else [BK, BN]
        blocks = [[BM, BK]] * len(lefts) + [of_rights] * len(rights) + [[BM, BN]]
        tensors = map(TensorDescriptor.from_tensor, tensors, blocks)
    grid = (triton.cdiv(M, BM) * (columns // BN),)
    arguments = *tensors, *arguments, tma, BM, BN, BK
    launch(kernel, grid, *arguments, num_warps=4, num_stages=stages if tma else 3)


def small_tile(W: torch.Tensor) -> tuple[int, int]:
    """Return the rows and columns of a block, for a kernel that reads weights [N, K] once."""
    rows, depth = (64, 256) if IS_INTERPRETED else (4, 128)
    return rows, min(W.shape[1], depth)


def gram_product(W: torch.Tensor, G: torch.Tensor) -> torch.Tensor:
    """Return W G [N, K] in fp32, for weights W [N, K] in 16 bits and a Gram matrix G in fp32."""
    N, K = W.shape
    WG = torch.empty(N, K, device=W.device)
    BN, BJ, BK = (256, 256, 256) if IS_INTERPRETED else (32, 64, 32)
    BN, BJ, BK = min(BN, N), min(BJ, K), min(BK, K)
    launch(gram_product_kernel, (N // BN, K // BJ), W, G, WG, N, K, BN, BJ, BK, num_warps=4)
    return WG


@dataclass
class Linear:
    """A 1x1 convolution with its BatchNorm, and the tensors for their backward in one step."""

    conv: nn.Conv2d
    norm: Norm
    z: torch.Tensor  # [M, K], the input
    below: Norm  # its row "total" contains z's column sums
    WG: torch.Tensor  # [N, K], fp32: weights x Gram matrix


def linear_norm(
    state: State,
    z: torch.Tensor,
    below: Norm,
    conv: nn.Conv2d,
    norm: Norm,
    identity: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor | None, Linear]:
    """Return relu(bn(z W') + identity) [M, N] and its mask [M, N/8].

    Without identity, return bn(z W') and no mask.
    """
    W = state.weight[conv].flatten(1)
    (N, K), M, T = W.shape, z.shape[0], norm.stride
    # Compute the statistics from the rounded weights that the convolution uses.
    WG = gram_product(W, product(z, z))
    BN, BK = small_tile(W)
    arguments = W, WG, norm.table, below.table, T, M, K, norm.eps, norm.momentum, BN, BK
    launch(gram_stats_kernel, (N // BN,), *arguments, num_warps=4)
    out = torch.empty(M, N, device=z.device, dtype=z.dtype)
    joins = identity is not None
    bits = torch.empty(M, N // 8, device=z.device, dtype=torch.uint8) if joins else None
    epilogue = norm.table, identity if joins else out, bits if joins else out
    epilogue += T, M, K, N, N // 8, joins
    rows = 64 if joins else 128
    product_launch(conv3_kernel, rows, 3, K, [z], [W], out, *epilogue, transposed=True)
    return out, bits, Linear(conv, norm, z, below, WG)


def linear_norm_backward(
    state: State, d: torch.Tensor, d_norm: Norm, linear: Linear, y: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the gradient of z [M, K], and store the gradients of conv and norm in the state.

    d [M, N] is the gradient of bn(z W'); d_norm's dbeta contains its column sums. With y,
    z = relu(bn(y)), and the same kernel adds the gradients of the norm below.
    """
    conv, norm, below, z = linear.conv, linear.norm, linear.below, linear.z
    W = state.weight[conv].flatten(1)
    (N, K), M, T = W.shape, z.shape[0], norm.stride
    P = product(d, z)
    A, KW, (BN, BK) = torch.empty_like(W), torch.empty_like(W), small_tile(W)
    norms = norm.table, d_norm.table, below.table
    results = state.weight_gradient[conv], A, KW
    arguments = P, W, linear.WG, *norms, *results, T, M, K, BN, BK
    launch(gram_bwd_kernel, (N // BN,), *arguments, num_warps=4)
    dz = torch.empty_like(z)
    epilogue = below.table, z if y is None else y, T, M, N, K, below.eps, y is not None
    rows, rights = 128 if y is None else 64, [A, W.t() @ KW]
    product_launch(dz_kernel, rows, 3, N, [d, z], rights, dz, *epilogue)
    return dz


def input_gradient(
    dy: torch.Tensor,
    W: torch.Tensor,
    shortcut: torch.Tensor,
    bits: torch.Tensor,
    norm: Norm,
    height: int,
    strided: bool,
) -> torch.Tensor:
    """Return mask * (dy W + shortcut) [M, N] for dy [M, K], W [K, N]; add column sums to norm's
    dbeta.

    strided: shortcut stores only every second pixel of images of height x height.
    """
    (M, K), N = dy.shape, W.shape[1]
    d = torch.empty(M, N, device=dy.device, dtype=dy.dtype)
    epilogue = shortcut, bits, norm.table, norm.stride, M, K, N, N // 8, height, strided
    product_launch(dgrad1_kernel, 64, 2, K, [dy], [W], d, *epilogue)
    return d
