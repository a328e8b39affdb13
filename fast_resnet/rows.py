"""Launches of the kernels that pass over rows. Tensors are [M, C]: pixels x channels."""

import torch
import triton

from fast_resnet.kernels.rows import (
    bn_relu_bwd_kernel,
    bn_relu_bwd_sums_kernel,
    bn_relu_kernel,
    stats_kernel,
    unpool_mask_kernel,
)
from fast_resnet.kernels.stem import (
    stem_bwd_kernel,
    stem_bwd_sums_kernel,
    stem_pool_kernel,
)
from fast_resnet.state import Norm
from fast_resnet.tuning import Choices

UNPOOL_TILE = (4096, 8, 4)  # elements, warps, per multiprocessor; no other is tried


def add_sums(choices: Choices, y: torch.Tensor, sums: torch.Tensor) -> None:
    """sums [2 C] += sum(y), sum(y*y)."""
    M, C = y.shape

    def launch(grid, BR, BC, warps):
        choices.launch(stats_kernel, grid, y, sums, M, C, BR, BC, num_warps=warps)

    choices.run("stats", M, (C,), choices.row_candidates(M, C, launch), (sums,))


def norm_relu(
    choices: Choices, y: torch.Tensor, norm: Norm, total: torch.Tensor | None = None
) -> torch.Tensor:
    """z = relu(bn(y)) [M, C] from norm.sums; total [C] += sum(z), where it is given."""
    M, C = y.shape
    z = torch.empty_like(y)
    wanted = total is not None
    added = total if wanted else norm.sums  # a kernel takes a pointer, wanted or not

    def launch(grid, BR, BC, warps):
        choices.launch(
            bn_relu_kernel,
            grid,
            y,
            norm.sums,
            norm.gamma,
            norm.beta,
            norm.running_mean,
            norm.running_var,
            z,
            added,
            M,
            norm.eps,
            norm.momentum,
            C,
            BR,
            BC,
            wanted,
            num_warps=warps,
        )

    touched = (norm.running_mean, norm.running_var, *([total] if wanted else []))
    choices.run("bn_relu", M, (C, wanted), choices.row_candidates(M, C, launch), touched)
    return z


def add_norm_gradients(choices: Choices, dz: torch.Tensor, y: torch.Tensor, norm: Norm) -> None:
    """norm.gradients [2 C] += those of beta and gamma, for z = relu(bn(y))."""
    M, C = y.shape

    def launch(grid, BR, BC, warps):
        choices.launch(
            bn_relu_bwd_sums_kernel,
            grid,
            dz,
            y,
            norm.sums,
            norm.gamma,
            norm.beta,
            norm.gradients,
            M,
            norm.eps,
            C,
            BR,
            BC,
            num_warps=warps,
        )

    candidates = choices.row_candidates(M, C, launch)
    choices.run("bwd_sums", M, (C,), candidates, (norm.gradients,))


def norm_relu_backward(
    choices: Choices, dz: torch.Tensor, y: torch.Tensor, norm: Norm
) -> torch.Tensor:
    """The gradient of y [M, C] for z = relu(bn(y)), once norm.gradients are complete."""
    M, C = y.shape
    dy = torch.empty_like(y)

    def launch(grid, BR, BC, warps):
        choices.launch(
            bn_relu_bwd_kernel,
            grid,
            dz,
            y,
            norm.sums,
            norm.gamma,
            norm.beta,
            norm.gradients,
            dy,
            M,
            norm.eps,
            C,
            BR,
            BC,
            num_warps=warps,
        )

    choices.run("bwd", M, (C,), choices.row_candidates(M, C, launch))
    return dy


def unpool_masked(
    choices: Choices, gradient: torch.Tensor, bits: torch.Tensor, total: torch.Tensor, pool: int
) -> torch.Tensor:
    """The gradient [n pool, C] behind ReLU and average pool, from that of the pooled [n, C].

    bits [n pool, C/8] is the ReLU's mask; total [C] += the column sums.
    """
    M, C = bits.shape[0], gradient.shape[1]
    d = torch.empty(M, C, device=gradient.device, dtype=gradient.dtype)
    elements, warps, per_sm = UNPOOL_TILE
    grid, BR, BC = choices.row_grid(M, C, elements, per_sm)
    choices.launch(
        unpool_mask_kernel, grid, gradient, bits, d, total, M, C, BR, BC, pool, num_warps=warps
    )
    return d


def stem_pool(
    choices: Choices,
    y: torch.Tensor,
    norm: Norm,
    total: torch.Tensor,
    n: int,
    height: int,
    dtype: torch.dtype,
) -> tuple[torch.Tensor, torch.Tensor]:
    """maxpool(relu(bn(y))) [n height²/4, C], and which tap won (uint8); total [C] += its sums."""
    M, C = y.shape
    pooled = n * (height // 2) ** 2
    p, winner = (y.new_empty(pooled, C, dtype=each) for each in (dtype, torch.uint8))

    def launch(BP, warps):
        choices.launch(
            stem_pool_kernel,
            (triton.cdiv(pooled, BP),),
            y,
            norm.sums,
            norm.gamma,
            norm.beta,
            norm.running_mean,
            norm.running_var,
            p,
            winner,
            total,
            M,
            n,
            norm.eps,
            norm.momentum,
            height,
            C,
            BP,
            num_warps=warps,
        )

    touched = (total, norm.running_mean, norm.running_var)
    choices.run("pool", M, (C,), choices.stem_candidates(launch), touched)
    return p, winner


def stem_rows_backward(
    choices: Choices,
    dp: torch.Tensor,
    winner: torch.Tensor,
    y: torch.Tensor,
    norm: Norm,
    height: int,
) -> torch.Tensor:
    """The gradient of the stem's y [n height², C] from that of the pooled; fills norm.gradients."""
    M, C = y.shape
    dy = torch.empty_like(y, dtype=dp.dtype)
    shared = dp, winner, y, norm.sums, norm.gamma, norm.beta, norm.gradients

    def sums(BP, warps):
        grid = (min(triton.cdiv(M, BP), choices.processors * 32 // warps),)
        choices.launch(
            stem_bwd_sums_kernel, grid, *shared, M, norm.eps, height, C, BP, num_warps=warps
        )

    def gradient(BP, warps):
        grid = (min(triton.cdiv(M, BP), choices.processors * 64 // warps),)
        choices.launch(
            stem_bwd_kernel, grid, *shared, dy, M, norm.eps, height, C, BP, num_warps=warps
        )

    candidates = choices.stem_candidates(sums)
    choices.run("stem sums", M, (C,), candidates, (norm.gradients,))
    choices.run("stem bwd", M, (C,), choices.stem_candidates(gradient))
    return dy
