"""Triton kernels of the 1x1 convolutions: products that do in their epilogue what surrounds them.

formulas.py derives them; M, K, N, s, G, P, k1, k2, k3 are named as there. A program makes a
tile of BM rows and BN columns, and walks over the depth in steps of BK.

A function that a kernel calls becomes a part of it: a tile never leaves the registers in between.
"""

import triton
import triton.language as tl

from fast_resnet.kernels.rows import (
    affine,
    corrections,
    pack,
    relu,
    unpack,
    update_running,
)


@triton.jit
def multiply(
    acc,
    A,
    B,
    rows,
    cols,
    keep,
    DEPTH: tl.constexpr,
    BK: tl.constexpr,
    DOWN: tl.constexpr,
    RIGHT: tl.constexpr,
):
    """acc + A B for a tile: A [.., DEPTH], and B's element (k, n) at k DOWN + n RIGHT."""
    for k0 in range(0, DEPTH, BK):
        k = k0 + tl.arange(0, BK)
        a = tl.load(A + rows[:, None] * DEPTH + k[None, :], mask=keep, other=0.0)
        b = tl.load(B + k[:, None] * DOWN + cols[None, :] * RIGHT)
        acc = tl.dot(a, b, acc)
    return acc


@triton.jit
def row_products(W, OTHER, c, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Of rows c the sums over k of W OTHER, both [N, K]: the diagonal of W OTHER'."""
    total = tl.zeros((BN,), tl.float32)
    for k0 in range(0, K, BK):
        at = c[:, None] * K + (k0 + tl.arange(0, BK))[None, :]
        total += tl.sum(tl.load(W + at).to(tl.float32) * tl.load(OTHER + at), 1)
    return total


@triton.jit
def gram_stats_kernel(
    W,
    WG,
    S,
    GAMMA,
    BETA,
    RM,
    RV,
    SCALE,
    SHIFT,
    MEAN,
    RSTD,
    M,
    eps,
    momentum,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """Statistics of y = z W' from s = sum(z) [K] and WG = W (z'z) [N, K], before y exists."""
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    m = tl.zeros((BN,), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        w = tl.load(W + c[:, None] * K + k[None, :]).to(tl.float32)
        m += tl.sum(w * tl.load(S + k)[None, :], 1)
    mean = m / M
    var = relu(row_products(W, WG, c, K, BN, BK) / M - mean * mean)
    rstd = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(GAMMA + c) * rstd
    tl.store(SCALE + c, scale)
    tl.store(SHIFT + c, tl.load(BETA + c) - mean * scale)
    tl.store(MEAN + c, mean)
    tl.store(RSTD + c, rstd)
    update_running(RM, RV, c, mean, var, M, momentum)


@triton.jit
def gram_bwd_kernel(
    P,
    W,
    WG,
    S,
    TOTAL,
    MEAN,
    RSTD,
    SCALE,
    DBETA,
    DGAMMA,
    DW,
    A,
    KW,
    CONSTANT,
    M,
    K: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
):
    """From P = d'z and TOTAL [N] = sum(d) all gradients but dz = d A + z (W' KW) + CONSTANT.

    CONSTANT [K] stays fp32: rounded, it would be off by the same amount in every row."""
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    mean, rstd, total = tl.load(MEAN + c), tl.load(RSTD + c), tl.load(TOTAL + c)
    k1 = tl.load(SCALE + c)
    dgamma = rstd * (row_products(W, P, c, K, BN, BK) - mean * total)
    k2, k3 = corrections(k1, rstd, mean, total, dgamma, M)
    tl.store(DBETA + c, total)
    tl.store(DGAMMA + c, dgamma)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        at = c[:, None] * K + k[None, :]
        w = tl.load(W + at).to(tl.float32)
        dw = k1[:, None] * tl.load(P + at) - k2[:, None] * tl.load(S + k)[None, :]
        dw -= k3[:, None] * tl.load(WG + at)
        tl.store(DW + at, dw.to(DW.dtype.element_ty))
        tl.store(A + at, (k1[:, None] * w).to(A.dtype.element_ty))
        tl.store(KW + at, (-k3[:, None] * w).to(KW.dtype.element_ty))
        tl.atomic_add(CONSTANT + k, tl.sum(-k2[:, None] * w, 0))


@triton.jit
def conv3_kernel(
    X,
    W,
    SCALE,
    SHIFT,
    IDENTITY,
    OUT,
    BITS,
    M,
    K: tl.constexpr,
    N: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    JOINS: tl.constexpr,
):
    """OUT = relu((X W') * scale + shift + IDENTITY) [M, N] and the ReLU's mask in BITS [M, N/8].

    Without JOINS (the shortcut's convolution) there is neither identity nor ReLU.
    """
    pid = tl.program_id(0)
    pn = pid % (N // BN)  # columns first: the programs that run together share rows of X
    rows = (pid // (N // BN)) * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    keep = rows[:, None] < M
    at = rows[:, None] * N + cols[None, :]
    if JOINS:  # asked for before the loop, so that it arrives during it
        identity = tl.load(IDENTITY + at, mask=keep, other=0.0)
    acc = tl.zeros((BM, BN), tl.float32)
    acc = multiply(acc, X, W, rows, cols, keep, K, BK, 1, K)
    v = acc * tl.load(SCALE + cols)[None, :] + tl.load(SHIFT + cols)[None, :]
    if JOINS:
        v += identity.to(tl.float32)
        v = relu(v)
        cols8 = pn * (BN // 8) + tl.arange(0, BN // 8)
        tl.store(BITS + rows[:, None] * (N // 8) + cols8[None, :], pack(v > 0.0, BM, BN), mask=keep)
    tl.store(OUT + at, v.to(OUT.dtype.element_ty), mask=keep)


@triton.jit
def load_strided(SMALL, rows, cols, keep, N: tl.constexpr, H: tl.constexpr):
    """Rows of H x H images of which SMALL holds every second pixel, down and right; 0 elsewhere."""
    h = (rows // H) % H
    w = rows % H
    small = ((rows // (H * H)) * (H // 2) + h // 2) * (H // 2) + w // 2
    even = keep & ((h % 2 == 0) & (w % 2 == 0))[:, None]
    return tl.load(SMALL + small[:, None] * N + cols[None, :], mask=even, other=0.0)


@triton.jit
def dgrad1_kernel(
    DY,
    W,
    SHORTCUT,
    BITS,
    D,
    TOTAL,
    M,
    K: tl.constexpr,
    N: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    STRIDED: tl.constexpr,
    H: tl.constexpr,
):
    """D = mask * (DY W + SHORTCUT) [M, N], TOTAL [N] += its column sums.

    The gradient of a block's input, through its conv1 and its shortcut, behind the ReLU of the
    block below. STRIDED: SHORTCUT holds every second pixel of the H x H images only.
    """
    pid = tl.program_id(0)
    pn = pid % (N // BN)
    rows = (pid // (N // BN)) * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    keep = rows[:, None] < M
    at = rows[:, None] * N + cols[None, :]
    if STRIDED:
        shortcut = load_strided(SHORTCUT, rows, cols, keep, N, H)
    else:
        shortcut = tl.load(SHORTCUT + at, mask=keep, other=0.0)
    cols8 = pn * (BN // 8) + tl.arange(0, BN // 8)
    byte = tl.load(BITS + rows[:, None] * (N // 8) + cols8[None, :], mask=keep, other=0)
    acc = tl.zeros((BM, BN), tl.float32)
    acc = multiply(acc, DY, W, rows, cols, keep, K, BK, N, 1)
    v = acc + shortcut.to(tl.float32)
    d = tl.where(unpack(byte, BM, BN) > 0, v, 0.0).to(D.dtype.element_ty)
    tl.store(D + at, d, mask=keep)
    tl.atomic_add(TOTAL + cols, tl.sum(d.to(tl.float32), 0))


@triton.jit
def add_norm_gradients(o, y, keep, SUMS, GAMMA, BETA, GRADS, cols, M, eps, K: tl.constexpr):
    """GRADS [2, K] += sum(d), sum(d xhat) of a tile, where d = mask * o and z = relu(bn(y))."""
    mean, var, rstd, scale, shift = affine(SUMS, GAMMA, BETA, cols, M, eps, K)
    yf = y.to(tl.float32)
    positive = keep & (yf * scale[None, :] + shift[None, :] > 0.0)
    g = tl.where(positive, o.to(tl.float32), 0.0)
    tl.atomic_add(GRADS + cols, tl.sum(g, 0))
    tl.atomic_add(GRADS + K + cols, tl.sum(g * (yf - mean[None, :]), 0) * rstd)


@triton.jit
def dz_kernel(
    D,
    A,
    Z,
    B,
    CONSTANT,
    OUT,
    Y,
    SUMS,
    GAMMA,
    BETA,
    GRADS,
    M,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    BZ: tl.constexpr,
    WITH_SUMS: tl.constexpr,
):
    """OUT = D A + Z B + c [M, K], rounded once: both products go into one accumulator.

    WITH_SUMS: Z = relu(bn(Y)); that BatchNorm's gradients are made while the tile is there.
    """
    pid = tl.program_id(0)
    pn = pid % (K // BN)
    rows = (pid // (K // BN)) * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    keep = rows[:, None] < M
    at = rows[:, None] * K + cols[None, :]
    if WITH_SUMS:
        y = tl.load(Y + at, mask=keep, other=0.0)
    acc = multiply(tl.zeros((BM, BN), tl.float32), D, A, rows, cols, keep, N, BK, K, 1)
    acc = multiply(acc, Z, B, rows, cols, keep, K, BZ, K, 1)
    o = (acc + tl.load(CONSTANT + cols)[None, :]).to(OUT.dtype.element_ty)
    tl.store(OUT + at, o, mask=keep)
    if WITH_SUMS:
        add_norm_gradients(o, y, keep, SUMS, GAMMA, BETA, GRADS, cols, M, eps, K)
