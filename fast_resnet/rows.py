"""BatchNorm with ReLU, and the stem's max pooling, as Triton kernels that pass over rows.

Tensors are channels last and are treated as [M, C]: M = batch x height x width rows of C channels.
Each program loops over blocks of BR rows and accumulates BC columns in fp32. Sums over all rows use
atomic additions in no fixed order, so their last bits differ from run to run. NORM is the address
of a BatchNorm's first column in the table of state.py, and T is the length of a row of that table.
"""

import os

import torch
import triton
import triton.language as tl

from fast_resnet.state import ROWS, Norm

DBETA, DGAMMA, SUM, SQUARES = (tl.constexpr(ROWS.index(n)) for n in ROWS[:4])
TOTAL, GAMMA, BETA = (tl.constexpr(ROWS.index(n)) for n in ("total", "gamma", "beta"))
MEAN, VAR = (tl.constexpr(ROWS.index(n)) for n in ("running_mean", "running_var"))
STAGES = tl.constexpr(4)  # copies in flight, of kernels that only read
IS_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # then use few, large programs


def launch(kernel, grid: tuple, *arguments, **options) -> None:
    """Launch kernel[grid](...) with fused multiply-adds, which round once."""
    kernel[grid](*arguments, enable_fp_fusion=True, **options)


@triton.jit
def relu(v):
    """Return max(v, 0), and NaN for NaN as torch does: a diverged network must not look healthy."""
    return tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def affine(NORM, T, col, M, eps):
    """Compute BatchNorm's mean, variance, 1/std, scale and shift from the sums of y and y*y."""
    mean = tl.load(NORM + SUM * T + col) / M
    var = relu(tl.load(NORM + SQUARES * T + col) / M - mean * mean)
    rstd = 1.0 / tl.sqrt(var + eps)
    scale = tl.load(NORM + GAMMA * T + col) * rstd
    return mean, var, rstd, scale, tl.load(NORM + BETA * T + col) - mean * scale


@triton.jit
def corrections(k1, rstd, mean, dbeta, dgamma, M):
    """Compute k2 and k3 of BatchNorm's backward, dy = k1 d - k2 - k3 y (see formulas.py)."""
    k3 = k1 * rstd * dgamma / M
    return k1 * dbeta / M - k3 * mean, k3


@triton.jit
def update_running(NORM, T, col, mean, var, M, momentum):
    """Update running mean and variance as torch does: the variance is unbiased, M / (M - 1)."""
    at = NORM + MEAN * T + col
    tl.store(at, tl.load(at) * (1 - momentum) + mean * momentum)
    at = NORM + VAR * T + col
    tl.store(at, tl.load(at) * (1 - momentum) + var * (M / (M - 1.0)) * momentum)


@triton.jit
def block(i, col, M, C, BR: tl.constexpr):
    """Return the i-th block's row numbers, its offsets in memory, and a mask of existing rows."""
    rows = i * BR + tl.arange(0, BR)
    return rows, rows[:, None] * C + col[None, :], rows[:, None] < M


@triton.jit
def stats_kernel(Y, NORM, T, M, C, BR: tl.constexpr, BC: tl.constexpr):
    """Add sum(y) and sum(y*y) over the rows of Y [M, C] to the table's SUM and SQUARES."""
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    a = tl.zeros((BR, BC), tl.float32)
    b = tl.zeros((BR, BC), tl.float32)
    for i in tl.range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0), num_stages=STAGES):
        rows, at, keep = block(i, col, M, C, BR)
        y = tl.load(Y + at, mask=keep, other=0.0).to(tl.float32)
        a += y
        b += y * y
    tl.atomic_add(NORM + SUM * T + col, tl.sum(a, 0))
    tl.atomic_add(NORM + SQUARES * T + col, tl.sum(b, 0))


@triton.jit
def bn_relu_kernel(
    Y, NORM, Z, T, M, C, eps, momentum, WITH_TOTAL: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """Compute Z = relu(bn(Y)) [M, C]; update running statistics; WITH_TOTAL: TOTAL += sum(z)."""
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    mean, var, rstd, scale, shift = affine(NORM, T, col, M, eps)
    if tl.program_id(0) == 0:
        update_running(NORM, T, col, mean, var, M, momentum)
    a = tl.zeros((BR, BC), tl.float32)
    for i in range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0)):
        rows, at, keep = block(i, col, M, C, BR)
        y = tl.load(Y + at, mask=keep, other=0.0).to(tl.float32)
        z = relu(y * scale[None, :] + shift[None, :]).to(Z.dtype.element_ty)
        tl.store(Z + at, z, mask=keep)
        if WITH_TOTAL:  # sum the rounded z, because the next product reads the rounded z
            a += tl.where(keep, z.to(tl.float32), 0.0)
    if WITH_TOTAL:
        tl.atomic_add(NORM + TOTAL * T + col, tl.sum(a, 0))


@triton.jit
def bn_relu_bwd_sums_kernel(DZ, Y, NORM, T, M, C, eps, BR: tl.constexpr, BC: tl.constexpr):
    """Add sum(d) to the table's DBETA, sum(d xhat) to its DGAMMA; d is the gradient of bn(Y).

    The ReLU's mask is computed from y, which is read anyway, so it is cheaper than a stored mask.
    """
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    mean, var, rstd, scale, shift = affine(NORM, T, col, M, eps)
    a = tl.zeros((BR, BC), tl.float32)
    b = tl.zeros((BR, BC), tl.float32)
    last = tl.cdiv(M, BR) - 1
    for i in tl.range(tl.program_id(0), last + 1, tl.num_programs(0), num_stages=STAGES):
        # Start at the last block: the end of DZ was written last and may still be in the L2 cache.
        rows, at, keep = block(last - i, col, M, C, BR)
        y = tl.load(Y + at, mask=keep, other=0.0).to(tl.float32)
        g = tl.load(DZ + at, mask=keep, other=0.0).to(tl.float32)
        g = tl.where(y * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
        a += g
        b += g * (y - mean[None, :])
    tl.atomic_add(NORM + DBETA * T + col, tl.sum(a, 0))
    tl.atomic_add(NORM + DGAMMA * T + col, tl.sum(b, 0) * rstd)


@triton.jit
def gradient_factors(NORM, T, col, M, eps):
    """Compute scale, shift, k2 and k3 of dy = scale d - k2 - k3 y; the sums must be complete."""
    mean, var, rstd, scale, shift = affine(NORM, T, col, M, eps)
    dbeta, dgamma = tl.load(NORM + DBETA * T + col), tl.load(NORM + DGAMMA * T + col)
    k2, k3 = corrections(scale, rstd, mean, dbeta, dgamma, M)
    return scale, shift, k2, k3


@triton.jit
def bn_relu_bwd_kernel(DZ, Y, NORM, DY, T, M, C, eps, BR: tl.constexpr, BC: tl.constexpr):
    """Compute DY = k1 d - k2 - k3 y [M, C], from the sums of the kernel above."""
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    scale, shift, k2, k3 = gradient_factors(NORM, T, col, M, eps)
    for i in range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0)):
        rows, at, keep = block(i, col, M, C, BR)
        y = tl.load(Y + at, mask=keep, other=0.0).to(tl.float32)
        g = tl.load(DZ + at, mask=keep, other=0.0).to(tl.float32)
        g = tl.where(y * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
        dy = g * scale[None, :] - k2[None, :] - y * k3[None, :]
        tl.store(DY + at, dy.to(DY.dtype.element_ty), mask=keep)


@triton.jit
def window(DP, WINNER, p, down, right, col, pooled, half, C):
    """Return the winner of the pooling window below or to the right of windows p, and its gradient.

    Outside the image no tap has won.
    """
    h, w = (p // half) % half + down, p % half + right
    ok = ((p < pooled) & (h < half) & (w < half))[:, None]
    at = (p + down * half + right)[:, None] * C + col[None, :]
    winner = tl.load(WINNER + at, mask=ok, other=9)
    return winner, tl.load(DP + at, mask=ok, other=0.0).to(tl.float32)


@triton.jit
def unpool(DP, WINNER, p, col, pooled, half, C):
    """Gather max pooling's gradient at pixels (2h, 2w), (2h, 2w + 1), (2h + 1, 2w) and (2h + 1,
    2w + 1), for windows p at (h, w): only these and their neighbours contain the four pixels.

    Gathering needs no atomics, and the gradient of the ReLU's output is never written to memory.
    """
    own, d = window(DP, WINNER, p, 0, 0, col, pooled, half, C)
    right, d_right = window(DP, WINNER, p, 0, 1, col, pooled, half, C)
    below, d_below = window(DP, WINNER, p, 1, 0, col, pooled, half, C)
    both, d_both = window(DP, WINNER, p, 1, 1, col, pooled, half, C)
    g00 = tl.where(own == 4, d, 0.0)
    g01 = tl.where(own == 5, d, 0.0) + tl.where(right == 3, d_right, 0.0)
    g10 = tl.where(own == 7, d, 0.0) + tl.where(below == 1, d_below, 0.0)
    g11 = tl.where(own == 8, d, 0.0) + tl.where(right == 6, d_right, 0.0)
    g11 += tl.where(below == 2, d_below, 0.0) + tl.where(both == 0, d_both, 0.0)
    return g00, g01, g10, g11


@triton.jit
def stem_bwd_sums_kernel(
    DP, WINNER, Y, NORM, T, pooled, C, eps, half: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """Do as bn_relu_bwd_sums_kernel where DP [pooled, C] is the gradient of max pooling's output.

    Y [4 pooled, C] contains images of 2 half x 2 half pixels.
    """
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    mean, var, rstd, scale, shift = affine(NORM, T, col, 4 * pooled, eps)
    a = tl.zeros((BR, BC), tl.float32)
    b = tl.zeros((BR, BC), tl.float32)
    for i in range(tl.program_id(0), tl.cdiv(pooled, BR), tl.num_programs(0)):
        p, at, keep = block(i, col, pooled, C, BR)
        gradients = unpool(DP, WINNER, p, col, pooled, half, C)
        for j in tl.static_range(4):
            y = tl.load(Y + pixels(p, j, half, C, col), mask=keep, other=0.0).to(tl.float32)
            a += gradients[j]
            b += gradients[j] * (y - mean[None, :])
    tl.atomic_add(NORM + DBETA * T + col, tl.sum(a, 0))
    tl.atomic_add(NORM + DGAMMA * T + col, tl.sum(b, 0) * rstd)


@triton.jit
def pixels(p, j: tl.constexpr, half, C, col):
    """Return the offsets of pixel j of 4, as in unpool, of windows p."""
    pixel = (p // half) * (4 * half) + (p % half) * 2 + (j // 2) * (2 * half) + j % 2
    return pixel[:, None] * C + col[None, :]


@triton.jit
def stem_bwd_kernel(
    DP, WINNER, Y, NORM, DY, T, pooled, C, eps,
    half: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """Compute DY [4 pooled, C] from the sums of the kernel above."""
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    scale, shift, k2, k3 = gradient_factors(NORM, T, col, 4 * pooled, eps)
    for i in range(tl.program_id(0), tl.cdiv(pooled, BR), tl.num_programs(0)):
        p, at, keep = block(i, col, pooled, C, BR)
        gradients = unpool(DP, WINNER, p, col, pooled, half, C)
        for j in tl.static_range(4):
            at = pixels(p, j, half, C, col)
            y = tl.load(Y + at, mask=keep, other=0.0).to(tl.float32)
            dy = gradients[j] * scale[None, :] - k2[None, :] - y * k3[None, :]
            tl.store(DY + at, dy.to(DY.dtype.element_ty), mask=keep)


@triton.jit
def subsample_kernel(X, OUT, NORM, T, M, C, half: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """Copy every second row and column of images X of 2 half x 2 half pixels to OUT [M, C]; add
    its column sums to the table's TOTAL."""
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    a = tl.zeros((BR, BC), tl.float32)
    for i in range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0)):
        rows, at, keep = block(i, col, M, C, BR)
        x = tl.load(X + pixels(rows, 0, half, C, col), mask=keep, other=0.0)
        tl.store(OUT + at, x, mask=keep)
        a += x.to(tl.float32)
    tl.atomic_add(NORM + TOTAL * T + col, tl.sum(a, 0))


@triton.jit
def pack(positive, BR: tl.constexpr, BC: tl.constexpr):
    """Pack [BR, BC] booleans into [BR, BC/8] bytes: the ReLU's mask, one bit per element.

    Of each 64 columns, bit j of byte c is column 8j + c. In a matrix product, one thread has all
    eight of them, so that packing moves nothing between threads.
    """
    G: tl.constexpr = min(BC, 64)
    bits = tl.reshape(positive.to(tl.int32), (BR, BC // G, 8, G // 8))
    bits = bits << tl.arange(0, 8)[None, None, :, None]
    return tl.reshape(tl.sum(bits, 2).to(tl.uint8), (BR, BC // 8))


@triton.jit
def unpack(byte, BR: tl.constexpr, BC: tl.constexpr):
    """Unpack [BR, BC/8] bytes into [BR, BC] zeros and ones."""
    G: tl.constexpr = min(BC, 64)
    byte = tl.reshape(byte.to(tl.int32), (BR, BC // G, 1, G // 8))
    return tl.reshape((byte >> tl.arange(0, 8)[None, None, :, None]) & 1, (BR, BC))


@triton.jit
def unpool_mask_kernel(
    G, BITS, NORM, D, T, M, C, POOL: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr
):
    """Compute D = mask * G / POOL [M, C]; add its column sums to the table's DBETA.

    G [M / POOL, C] is the gradient of average pooling: one row for the POOL pixels of an image.
    """
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    col8 = tl.program_id(1) * (BC // 8) + tl.arange(0, BC // 8)
    a = tl.zeros((BR, BC), tl.float32)
    for i in range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0)):
        rows, at, keep = block(i, col, M, C, BR)
        of_image = (rows // POOL)[:, None] * C + col[None, :]
        g = tl.load(G + of_image, mask=keep, other=0.0).to(tl.float32) / POOL
        byte = tl.load(BITS + rows[:, None] * (C // 8) + col8[None, :], mask=keep, other=0)
        d = tl.where(unpack(byte, BR, BC) > 0, g, 0.0).to(D.dtype.element_ty)
        a += d.to(tl.float32)
        tl.store(D + at, d, mask=keep)
    tl.atomic_add(NORM + DBETA * T + col, tl.sum(a, 0))


@triton.jit
def stem_pool_kernel(
    Y, NORM, P, WINNER, T, M, pooled, eps, momentum,
    H: tl.constexpr, C: tl.constexpr, BP: tl.constexpr,
):  # fmt: skip
    """Compute P = maxpool3x3 stride 2 (relu(bn(Y))) [pooled, C]; add its column sums to TOTAL.

    Y [M, C] contains H x H images. WINNER stores which tap 0..8 had the maximum, or 9 where P is 0
    and no gradient flows.
    """
    col = tl.arange(0, C)
    mean, var, rstd, scale, shift = affine(NORM, T, col, M, eps)
    if tl.program_id(0) == 0:
        update_running(NORM, T, col, mean, var, M, momentum)
    half: tl.constexpr = H // 2
    pixel, at, keep = block(tl.program_id(0), col, pooled, C, BP)
    n = pixel // (half * half)
    best = tl.full((BP, C), -1e30, tl.float32)
    winner = tl.full((BP, C), 9, tl.int32)
    for tap in tl.static_range(9):
        h = 2 * ((pixel // half) % half) + (tap // 3 - 1)
        w = 2 * (pixel % half) + (tap % 3 - 1)
        ok = keep & ((h >= 0) & (w >= 0) & (h < H) & (w < H))[:, None]
        y = tl.load(Y + ((n * H + h) * H + w)[:, None] * C + col[None, :], mask=ok, other=0.0)
        v = tl.where(ok, y.to(tl.float32) * scale[None, :] + shift[None, :], -1e30)
        win = (v > best) | (v != v)  # like torch's max pool: the first of equal taps, or NaN
        best = tl.where(win, v, best)
        winner = tl.where(win, tap, winner)
    winner = tl.where(best <= 0.0, 9, winner)
    p = relu(best).to(P.dtype.element_ty)
    tl.store(P + at, p, mask=keep)
    tl.store(WINNER + at, winner.to(tl.uint8), mask=keep)
    tl.atomic_add(NORM + TOTAL * T + col, tl.sum(tl.where(keep, p.to(tl.float32), 0.0), 0))


def launch_over_rows(kernel, x: torch.Tensor, *arguments, rows: int = 32, share: int = 8) -> None:
    """Launch a kernel that loops over x [M, C] in blocks of `rows` rows and 64 columns.

    `share` programs run on a multiprocessor. `arguments` are all arguments except the block's size.
    """
    M, C = x.shape
    BR, BC = (max(2**16 // C, 1), C) if IS_INTERPRETED else (rows, min(C, 64))
    processors = 1
    if x.is_cuda:
        processors = torch.cuda.get_device_properties(x.device).multi_processor_count
    walkers = max(1, min(triton.cdiv(M, BR), processors * share // (C // BC)))
    launch(kernel, (walkers, C // BC), *arguments, BR, BC, num_warps=4)


def add_sums(y: torch.Tensor, norm: Norm) -> None:
    """Add sum(y) and sum(y*y) of y [M, C] to the norm's rows."""
    launch_over_rows(stats_kernel, y, y, norm.table, norm.stride, *y.shape, share=4)


def norm_relu(y: torch.Tensor, norm: Norm, with_total: bool) -> torch.Tensor:
    """Return z = relu(bn(y)) [M, C] from the norm's sums; with_total: also add z's column sums."""
    z, numbers = torch.empty_like(y), (norm.eps, norm.momentum, with_total)
    launch_over_rows(bn_relu_kernel, y, y, norm.table, z, norm.stride, *y.shape, *numbers)
    return z


def add_norm_gradients(dz: torch.Tensor, y: torch.Tensor, norm: Norm) -> None:
    """Add the gradients of beta and gamma for z = relu(bn(y)), y [M, C]."""
    arguments = dz, y, norm.table, norm.stride, *y.shape, norm.eps
    launch_over_rows(bn_relu_bwd_sums_kernel, y, *arguments, share=4)


def norm_relu_backward(dz: torch.Tensor, y: torch.Tensor, norm: Norm) -> torch.Tensor:
    """Return the gradient of y [M, C]. dbeta and dgamma must be complete."""
    dy = torch.empty_like(y)
    arguments = dz, y, norm.table, dy, norm.stride, *y.shape, norm.eps
    launch_over_rows(bn_relu_bwd_kernel, y, *arguments)
    return dy


def stem_backward(
    dp: torch.Tensor, winner: torch.Tensor, y: torch.Tensor, norm: Norm, height: int
) -> torch.Tensor:
    """Return the gradient of y [4 M, C], which `stem_pool` got, in dp's type; add dbeta and dgamma.

    dp [M, C] is the gradient of its output; y has height² pixels per image.
    """
    dy = torch.empty_like(y, dtype=dp.dtype)
    sizes = norm.stride, *dp.shape, norm.eps, height // 2
    launch_over_rows(stem_bwd_sums_kernel, dp, dp, winner, y, norm.table, *sizes, rows=8)
    launch_over_rows(stem_bwd_kernel, dp, dp, winner, y, norm.table, dy, *sizes, rows=8)
    return dy


def subsample(x: torch.Tensor, norm: Norm, height: int) -> torch.Tensor:
    """Return every second row and column of images x [n height², C], as [n height²/4, C]; add its
    column sums to the norm's row "total"."""
    out = x.new_empty(len(x) // 4, x.shape[1])
    arguments = x, out, norm.table, norm.stride, *out.shape, height // 2
    launch_over_rows(subsample_kernel, out, *arguments)
    return out


def unpool_masked(gradient: torch.Tensor, bits: torch.Tensor, norm: Norm) -> torch.Tensor:
    """Return the gradient [M, C] before ReLU and average pooling, from the pooled one [n, C].

    bits [M, C/8] is the ReLU's mask; the column sums are added to the norm's dbeta.
    """
    M, (n, C) = bits.shape[0], gradient.shape
    d = torch.empty(M, C, device=gradient.device, dtype=gradient.dtype)
    arguments = gradient, bits, norm.table, d, norm.stride, M, C, M // n
    launch_over_rows(unpool_mask_kernel, d, *arguments)
    return d


def stem_pool(
    y: torch.Tensor, norm: Norm, height: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return maxpool(relu(bn(y))) [M/4, C] and the tap of each maximum (uint8).

    y [M, C] contains images of height x height pixels.
    """
    (M, C), BP = y.shape, 1024 if IS_INTERPRETED else 32
    p, winner = (y.new_empty(M // 4, C, dtype=kind) for kind in (dtype, torch.uint8))
    launch(
        stem_pool_kernel,
        (triton.cdiv(M // 4, BP),),
        *(y, norm.table, p, winner, norm.stride, M, M // 4, norm.eps, norm.momentum, height, C, BP),
        num_warps=4,
    )
    return p, winner
