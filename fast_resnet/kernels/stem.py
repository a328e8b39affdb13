"""Triton kernels of the stem: BatchNorm, ReLU and max pooling in one pass, and their backward.

The convolution's output Y [n H H, C] is the largest tensor of the stem. Forward reads it twice
(sums, then this), and writes only the pooled rows and, in a byte each, which tap won.
"""

import triton
import triton.language as tl

from fast_resnet.kernels.rows import affine, corrections, relu, update_running


@triton.jit
def largest(
    Y,
    n,
    ph,
    pw,
    col,
    keep,
    scale,
    shift,
    BP: tl.constexpr,
    H: tl.constexpr,
    C: tl.constexpr,
):
    """Of the windows around pooled pixels the largest Y * scale + shift [BP, C], and its tap."""
    best = tl.full((BP, C), -1e30, tl.float32)
    winner = tl.full((BP, C), 9, tl.int32)
    for tap in tl.static_range(9):
        h = 2 * ph + (tap // 3 - 1)
        w = 2 * pw + (tap % 3 - 1)
        ok = keep & (h >= 0) & (w >= 0) & (h < H) & (w < H)
        at = ((n * H + h) * H + w)[:, None] * C + col[None, :]
        y = tl.load(Y + at, mask=ok[:, None], other=0.0).to(tl.float32)
        v = tl.where(ok[:, None], y * scale[None, :] + shift[None, :], -1e30)
        win = (v > best) | (v != v)  # the first of equals, and NaN, as torch's max pool has it
        best = tl.where(win, v, best)
        winner = tl.where(win, tap, winner)
    return best, winner


@triton.jit
def stem_pool_kernel(
    Y,
    SUMS,
    GAMMA,
    BETA,
    RM,
    RV,
    P,
    WINNER,
    TOTAL,
    M,
    n_images,
    eps,
    momentum,
    H: tl.constexpr,
    C: tl.constexpr,
    BP: tl.constexpr,
):
    """P = maxpool3x3 stride 2 (relu(bn(Y))) [n H/2 H/2, C]; TOTAL [C] += its column sums.

    WINNER holds the tap 0..8 that won, or 9 where P is 0 and no gradient flows.
    """
    col = tl.arange(0, C)
    mean, var, rstd, scale, shift = affine(SUMS, GAMMA, BETA, col, M, eps, C)
    if tl.program_id(0) == 0:
        update_running(RM, RV, col, mean, var, M, momentum)
    HP: tl.constexpr = H // 2
    pixel = tl.program_id(0) * BP + tl.arange(0, BP)
    keep = pixel < n_images * HP * HP
    n = pixel // (HP * HP)
    ph = (pixel // HP) % HP
    pw = pixel % HP
    best, winner = largest(Y, n, ph, pw, col, keep, scale, shift, BP, H, C)
    winner = tl.where(best <= 0.0, 9, winner)
    at = pixel[:, None] * C + col[None, :]
    p = relu(best).to(P.dtype.element_ty)
    tl.store(P + at, p, mask=keep[:, None])
    tl.store(WINNER + at, winner.to(tl.uint8), mask=keep[:, None])
    tl.atomic_add(TOTAL + col, tl.sum(tl.where(keep[:, None], p.to(tl.float32), 0.0), 0))


@triton.jit
def unpool(DP, WINNER, pixel, col, keep, BP: tl.constexpr, H: tl.constexpr, C: tl.constexpr):
    """The pooled gradient at input pixels [BP, C]: at most four windows hold a pixel.

    Gathering needs no atomics, and the gradient of the ReLU's output is never written.
    """
    HP: tl.constexpr = H // 2
    n = pixel // (H * H)
    h = (pixel // H) % H
    w = pixel % H
    g = tl.zeros((BP, C), tl.float32)
    for a in tl.static_range(2):
        for b in tl.static_range(2):
            ph = (h + 1) // 2 - a
            pw = (w + 1) // 2 - b
            dh = h - 2 * ph + 1
            dw = w - 2 * pw + 1
            ok = keep & (ph >= 0) & (pw >= 0) & (ph < HP) & (pw < HP) & (dh <= 2) & (dw <= 2)
            at = ((n * HP + ph) * HP + pw)[:, None] * C + col[None, :]
            winner = tl.load(WINNER + at, mask=ok[:, None], other=9).to(tl.int32)
            dp = tl.load(DP + at, mask=ok[:, None], other=0.0).to(tl.float32)
            g += tl.where(winner == (dh * 3 + dw)[:, None], dp, 0.0)
    return g


@triton.jit
def stem_bwd_sums_kernel(
    DP,
    WINNER,
    Y,
    SUMS,
    GAMMA,
    BETA,
    GRADS,
    M,
    eps,
    H: tl.constexpr,
    C: tl.constexpr,
    BP: tl.constexpr,
):
    """GRADS [2, C] += the gradients of the stem's beta and gamma."""
    col = tl.arange(0, C)
    mean, var, rstd, scale, shift = affine(SUMS, GAMMA, BETA, col, M, eps, C)
    a = tl.zeros((BP, C), tl.float32)
    b = tl.zeros((BP, C), tl.float32)
    blocks = tl.cdiv(M, BP)
    for i in range(tl.program_id(0), blocks, tl.num_programs(0)):
        # From the last block: the end of DP was written last and may still be in the L2 cache.
        pixel = (blocks - 1 - i) * BP + tl.arange(0, BP)
        keep = pixel < M
        g = unpool(DP, WINNER, pixel, col, keep, BP, H, C)
        at = pixel[:, None] * C + col[None, :]
        y = tl.load(Y + at, mask=keep[:, None], other=0.0).to(tl.float32)
        a += g
        b += g * (y - mean[None, :])
    tl.atomic_add(GRADS + col, tl.sum(a, 0))
    tl.atomic_add(GRADS + C + col, tl.sum(b, 0) * rstd)


@triton.jit
def stem_bwd_kernel(
    DP,
    WINNER,
    Y,
    SUMS,
    GAMMA,
    BETA,
    GRADS,
    DY,
    M,
    eps,
    H: tl.constexpr,
    C: tl.constexpr,
    BP: tl.constexpr,
):
    """DY = k1 d - k2 - k3 y [n H H, C], the gradient of the stem's convolution."""
    col = tl.arange(0, C)
    mean, var, rstd, scale, shift = affine(SUMS, GAMMA, BETA, col, M, eps, C)
    dbeta, dgamma = tl.load(GRADS + col), tl.load(GRADS + C + col)
    k2, k3 = corrections(scale, rstd, mean, dbeta, dgamma, M)
    for i in range(tl.program_id(0), tl.cdiv(M, BP), tl.num_programs(0)):
        pixel = i * BP + tl.arange(0, BP)
        keep = pixel < M
        g = unpool(DP, WINNER, pixel, col, keep, BP, H, C)
        at = pixel[:, None] * C + col[None, :]
        y = tl.load(Y + at, mask=keep[:, None], other=0.0).to(tl.float32)
        dy = g * scale[None, :] - k2[None, :] - y * k3[None, :]
        tl.store(DY + at, dy.to(DY.dtype.element_ty), mask=keep[:, None])
