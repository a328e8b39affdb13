"""Triton kernels of the 1x1 convolutions: products that do in their epilogue what surrounds them.

formulas.py derives them; M, K, N, s, G, P, k1, k2, k3 are named as there. A program makes a
tile of BM rows and BN columns, and walks over the depth in steps of BK.

The three product kernels have one loop and a long epilogue each, and are not split: the point is
that a tile never leaves the registers in between.
"""

import triton
import triton.language as tl

from course.training.algebra.kernels.rows import affine, pack, unpack, update_running


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
    q = tl.zeros((BN,), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        w = tl.load(W + c[:, None] * K + k[None, :]).to(tl.float32)
        m += tl.sum(w * tl.load(S + k)[None, :], 1)
        q += tl.sum(w * tl.load(WG + c[:, None] * K + k[None, :]), 1)
    mean = m / M
    var = tl.maximum(q / M - mean * mean, 0.0)
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
    """The gradients of gamma, beta and W from P = d'z, and the factors of dz = d A + z (W' KW) + c.

    TOTAL [N] = sum(d); A = k1 W, KW = -k3 W [N, K]; c = CONSTANT [K] += -k2' W stays fp32: rounded,
    it would be off by the same amount in every row.
    """
    c = tl.program_id(0) * BN + tl.arange(0, BN)
    pw = tl.zeros((BN,), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        w = tl.load(W + c[:, None] * K + k[None, :]).to(tl.float32)
        pw += tl.sum(w * tl.load(P + c[:, None] * K + k[None, :]), 1)
    mean = tl.load(MEAN + c)
    rstd = tl.load(RSTD + c)
    total = tl.load(TOTAL + c)
    k1 = tl.load(SCALE + c)
    dgamma = rstd * (pw - mean * total)
    k3 = k1 * rstd * dgamma / M
    k2 = k1 * total / M - k3 * mean
    tl.store(DBETA + c, total)
    tl.store(DGAMMA + c, dgamma)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        at = c[:, None] * K + k[None, :]
        w = tl.load(W + at).to(tl.float32)
        s = tl.load(S + k)[None, :]
        dw = k1[:, None] * tl.load(P + at) - k2[:, None] * s - k3[:, None] * tl.load(WG + at)
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
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        x = tl.load(X + rows[:, None] * K + k[None, :], mask=keep, other=0.0)
        w = tl.load(W + cols[None, :] * K + k[:, None])
        acc = tl.dot(x, w, acc)
    v = acc * tl.load(SCALE + cols)[None, :] + tl.load(SHIFT + cols)[None, :]
    if JOINS:
        v += identity.to(tl.float32)
        v = tl.maximum(v, 0.0)
        cols8 = pn * (BN // 8) + tl.arange(0, BN // 8)
        tl.store(BITS + rows[:, None] * (N // 8) + cols8[None, :], pack(v > 0.0, BM, BN), mask=keep)
    tl.store(OUT + at, v.to(OUT.dtype.element_ty), mask=keep)


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
        h = (rows // H) % H
        w_ = rows % H
        small = ((rows // (H * H)) * (H // 2) + h // 2) * (H // 2) + w_ // 2
        even = keep & ((h % 2 == 0) & (w_ % 2 == 0))[:, None]
        shortcut = tl.load(SHORTCUT + small[:, None] * N + cols[None, :], mask=even, other=0.0)
    else:
        shortcut = tl.load(SHORTCUT + at, mask=keep, other=0.0)
    cols8 = pn * (BN // 8) + tl.arange(0, BN // 8)
    byte = tl.load(BITS + rows[:, None] * (N // 8) + cols8[None, :], mask=keep, other=0)
    acc = tl.zeros((BM, BN), tl.float32)
    for k0 in range(0, K, BK):
        k = k0 + tl.arange(0, BK)
        dy = tl.load(DY + rows[:, None] * K + k[None, :], mask=keep, other=0.0)
        w = tl.load(W + k[:, None] * N + cols[None, :])
        acc = tl.dot(dy, w, acc)
    v = acc + shortcut.to(tl.float32)
    d = tl.where(unpack(byte, BM, BN) > 0, v, 0.0).to(D.dtype.element_ty)
    tl.store(D + at, d, mask=keep)
    tl.atomic_add(TOTAL + cols, tl.sum(d.to(tl.float32), 0))


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

    WITH_SUMS: Z = relu(bn(Y)), and the two sums that this BatchNorm's backward needs are made from
    the tile while it is there: GRADS [2, K] += sum(d), sum(d xhat).
    """
    pid = tl.program_id(0)
    pn = pid % (K // BN)
    rows = (pid // (K // BN)) * BM + tl.arange(0, BM)
    cols = pn * BN + tl.arange(0, BN)
    keep = rows[:, None] < M
    at = rows[:, None] * K + cols[None, :]
    if WITH_SUMS:
        y = tl.load(Y + at, mask=keep, other=0.0)
    acc = tl.zeros((BM, BN), tl.float32)
    for n0 in range(0, N, BK):
        n = n0 + tl.arange(0, BK)
        d = tl.load(D + rows[:, None] * N + n[None, :], mask=keep, other=0.0)
        a = tl.load(A + n[:, None] * K + cols[None, :])
        acc = tl.dot(d, a, acc)
    for k0 in range(0, K, BZ):
        k = k0 + tl.arange(0, BZ)
        z = tl.load(Z + rows[:, None] * K + k[None, :], mask=keep, other=0.0)
        b = tl.load(B + k[:, None] * K + cols[None, :])
        acc = tl.dot(z, b, acc)
    o = (acc + tl.load(CONSTANT + cols)[None, :]).to(OUT.dtype.element_ty)
    tl.store(OUT + at, o, mask=keep)
    if WITH_SUMS:
        mean, var, rstd, scale, shift = affine(SUMS, GAMMA, BETA, cols, M, eps, K)
        yf = y.to(tl.float32)
        positive = keep & (yf * scale[None, :] + shift[None, :] > 0.0)
        g = tl.where(positive, o.to(tl.float32), 0.0)
        tl.atomic_add(GRADS + cols, tl.sum(g, 0))
        tl.atomic_add(GRADS + K + cols, tl.sum(g * (yf - mean[None, :]), 0) * rstd)
