"""Triton kernels that pass over rows: BatchNorm's sums, BatchNorm with ReLU, and their backward.

Tensors are channels last and seen as [M, C]: M = batch x height x width rows of C channels. A
program walks over blocks of BR rows and keeps BC columns in fp32; sums over all rows are added
with atomics into buffers that one memset clears each step. So sums differ in their last bits from
run to run: the order of the additions is not fixed.
"""

import triton
import triton.language as tl


@triton.jit
def relu(v):
    """max(v, 0), and NaN of NaN as torch has it: else a network that is lost has a sound loss."""
    return tl.maximum(v, 0.0, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def affine(SUMS, GAMMA, BETA, col, M, eps, C: tl.constexpr):
    """Mean, variance, 1/std, scale and shift of BatchNorm, from the sums of y and of y*y [2, C]."""
    mean = tl.load(SUMS + col) / M
    var = tl.load(SUMS + C + col) / M - mean * mean
    rstd = 1.0 / tl.sqrt(relu(var) + eps)
    scale = tl.load(GAMMA + col) * rstd
    return mean, var, rstd, scale, tl.load(BETA + col) - mean * scale


@triton.jit
def corrections(k1, rstd, mean, dbeta, dgamma, M):
    """k2 and k3 of BatchNorm's backward, dy = k1 d - k2 - k3 y."""
    k3 = k1 * rstd * dgamma / M
    return k1 * dbeta / M - k3 * mean, k3


@triton.jit
def update_running(RM, RV, col, mean, var, M, momentum):
    """Running mean and variance as torch keeps them: the variance unbiased, M / (M - 1)."""
    tl.store(RM + col, tl.load(RM + col) * (1 - momentum) + mean * momentum)
    tl.store(RV + col, tl.load(RV + col) * (1 - momentum) + var * (M / (M - 1.0)) * momentum)


@triton.jit
def stats_kernel(Y, SUMS, M, C: tl.constexpr, BR: tl.constexpr, BC: tl.constexpr):
    """SUMS [2, C] += sum(y), sum(y*y) over the rows of Y [M, C]."""
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    a = tl.zeros((BR, BC), tl.float32)
    b = tl.zeros((BR, BC), tl.float32)
    for i in range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0)):
        rows = i * BR + tl.arange(0, BR)
        at = rows[:, None] * C + col[None, :]
        y = tl.load(Y + at, mask=rows[:, None] < M, other=0.0).to(tl.float32)
        a += y
        b += y * y
    tl.atomic_add(SUMS + col, tl.sum(a, 0))
    tl.atomic_add(SUMS + C + col, tl.sum(b, 0))


@triton.jit
def bn_relu_kernel(
    Y,
    SUMS,
    GAMMA,
    BETA,
    RM,
    RV,
    Z,
    TOTAL,
    M,
    eps,
    momentum,
    C: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    WITH_TOTAL: tl.constexpr,
):
    """Z = relu(bn(Y)) [M, C]; running statistics; with WITH_TOTAL, TOTAL [C] += sum(z)."""
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    mean, var, rstd, scale, shift = affine(SUMS, GAMMA, BETA, col, M, eps, C)
    if tl.program_id(0) == 0:
        update_running(RM, RV, col, mean, var, M, momentum)
    a = tl.zeros((BR, BC), tl.float32)
    for i in range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0)):
        rows = i * BR + tl.arange(0, BR)
        at = rows[:, None] * C + col[None, :]
        keep = rows[:, None] < M
        y = tl.load(Y + at, mask=keep, other=0.0).to(tl.float32)
        z = relu(y * scale[None, :] + shift[None, :]).to(Z.dtype.element_ty)
        tl.store(Z + at, z, mask=keep)
        if WITH_TOTAL:  # of the rounded z: the product that follows reads no other
            a += tl.where(keep, z.to(tl.float32), 0.0)
    if WITH_TOTAL:
        tl.atomic_add(TOTAL + col, tl.sum(a, 0))


@triton.jit
def bn_relu_bwd_sums_kernel(
    DZ,
    Y,
    SUMS,
    GAMMA,
    BETA,
    GRADS,
    M,
    eps,
    C: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """GRADS [2, C] += the gradients of beta, sum(d), and of gamma, sum(d xhat); d = mask * DZ.

    The mask is made again from y, which is read anyway: cheaper than a stored one.
    """
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    mean, var, rstd, scale, shift = affine(SUMS, GAMMA, BETA, col, M, eps, C)
    a = tl.zeros((BR, BC), tl.float32)
    b = tl.zeros((BR, BC), tl.float32)
    for i in range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0)):
        rows = i * BR + tl.arange(0, BR)
        at = rows[:, None] * C + col[None, :]
        keep = rows[:, None] < M
        y = tl.load(Y + at, mask=keep, other=0.0).to(tl.float32)
        g = tl.load(DZ + at, mask=keep, other=0.0).to(tl.float32)
        g = tl.where(y * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
        a += g
        b += g * (y - mean[None, :])
    tl.atomic_add(GRADS + col, tl.sum(a, 0))
    tl.atomic_add(GRADS + C + col, tl.sum(b, 0) * rstd)


@triton.jit
def bn_relu_bwd_kernel(
    DZ,
    Y,
    SUMS,
    GAMMA,
    BETA,
    GRADS,
    DY,
    M,
    eps,
    C: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
):
    """DY = k1 d - k2 - k3 y [M, C], from the sums of the kernel above (formulas.py has the k's)."""
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    mean, var, rstd, scale, shift = affine(SUMS, GAMMA, BETA, col, M, eps, C)
    dbeta, dgamma = tl.load(GRADS + col), tl.load(GRADS + C + col)
    k2, k3 = corrections(scale, rstd, mean, dbeta, dgamma, M)
    for i in range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0)):
        rows = i * BR + tl.arange(0, BR)
        at = rows[:, None] * C + col[None, :]
        keep = rows[:, None] < M
        y = tl.load(Y + at, mask=keep, other=0.0).to(tl.float32)
        g = tl.load(DZ + at, mask=keep, other=0.0).to(tl.float32)
        g = tl.where(y * scale[None, :] + shift[None, :] > 0.0, g, 0.0)
        dy = g * scale[None, :] - k2[None, :] - y * k3[None, :]
        tl.store(DY + at, dy.to(DY.dtype.element_ty), mask=keep)


@triton.jit
def pack(positive, BR: tl.constexpr, BC: tl.constexpr):
    """[BR, BC] booleans as [BR, BC/8] bytes: the ReLU's mask in one bit an element."""
    bits = tl.reshape(positive.to(tl.int32), (BR, BC // 8, 8)) << tl.arange(0, 8)[None, None, :]
    return tl.sum(bits, 2).to(tl.uint8)


@triton.jit
def unpack(byte, BR: tl.constexpr, BC: tl.constexpr):
    """[BR, BC/8] bytes as [BR, BC] zeros and ones."""
    bits = (byte.to(tl.int32)[:, :, None] >> tl.arange(0, 8)[None, None, :]) & 1
    return tl.reshape(bits, (BR, BC))


@triton.jit
def unpool_mask_kernel(
    G,
    BITS,
    D,
    TOTAL,
    M,
    C: tl.constexpr,
    BR: tl.constexpr,
    BC: tl.constexpr,
    POOL: tl.constexpr,
):
    """D = mask * G / POOL [M, C], TOTAL [C] += its column sums.

    G [M / POOL, C] is the gradient of the average pool: one row for the POOL pixels of an image.
    """
    col = tl.program_id(1) * BC + tl.arange(0, BC)
    col8 = tl.program_id(1) * (BC // 8) + tl.arange(0, BC // 8)
    a = tl.zeros((BR, BC), tl.float32)
    for i in range(tl.program_id(0), tl.cdiv(M, BR), tl.num_programs(0)):
        rows = i * BR + tl.arange(0, BR)
        keep = rows[:, None] < M
        of_image = (rows // POOL)[:, None] * C + col[None, :]
        g = tl.load(G + of_image, mask=keep, other=0.0).to(tl.float32) / POOL
        byte = tl.load(BITS + rows[:, None] * (C // 8) + col8[None, :], mask=keep, other=0)
        d = tl.where(unpack(byte, BR, BC) > 0, g, 0.0).to(D.dtype.element_ty)
        a += d.to(tl.float32)
        tl.store(D + rows[:, None] * C + col[None, :], d, mask=keep)
    tl.atomic_add(TOTAL + col, tl.sum(a, 0))
