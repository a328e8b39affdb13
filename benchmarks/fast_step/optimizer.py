"""SGD with momentum and weight decay, and loss scaling, over the flat buffers: four launches.

A step whose gradients hold an inf or a NaN changes nothing but the loss scale: the kernels find it
out on the device, so the host never waits.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from course.training.algebra.state import State


@triton.jit
def find_overflow_kernel(G, OVERFLOW, n, B: tl.constexpr):
    """OVERFLOW [1] = 1 if G [n] holds an inf or a NaN."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    g = tl.load(G + at, mask=at < n, other=0.0).to(tl.float32)
    bad = tl.sum((g - g != 0.0).to(tl.int32), 0)  # inf - inf is NaN, as NaN - NaN is
    if bad > 0:
        tl.store(OVERFLOW, 1.0)


@triton.jit
def sgd_kernel(
    P,
    V,
    G,
    P_HALF,
    INVERSE_SCALE,
    OVERFLOW,
    n,
    lr,
    momentum,
    decay,
    B: tl.constexpr,
    ROUND: tl.constexpr,
):
    """v = momentum v + g / scale + decay p, p -= lr v; with ROUND, P_HALF = p in half precision."""
    at = tl.program_id(0) * B + tl.arange(0, B)
    keep = at < n
    if tl.load(OVERFLOW) == 0.0:
        p = tl.load(P + at, mask=keep, other=0.0)
        g = tl.load(G + at, mask=keep, other=0.0).to(tl.float32)
        g = g * tl.load(INVERSE_SCALE) + decay * p
        v = momentum * tl.load(V + at, mask=keep, other=0.0) + g
        p -= lr * v
        tl.store(V + at, v, mask=keep)
        tl.store(P + at, p, mask=keep)
        if ROUND:
            tl.store(P_HALF + at, p.to(P_HALF.dtype.element_ty), mask=keep)


class LossScale:
    """torch.amp.GradScaler's scale [1], kept on the device; 1 and constant without loss scaling."""

    def __init__(self, scale: float | None, device: torch.device) -> None:
        self.wanted = scale is not None
        self.scale = torch.full((1,), float(scale or 1.0), device=device)
        self.inverse = torch.reciprocal(self.scale)
        self._good_steps = torch.zeros(1, dtype=torch.int32, device=device)

    def update(self, overflow: torch.Tensor) -> None:
        """Halve the scale after an overflow, double it after 2000 steps without one."""
        if self.wanted:
            torch._amp_update_scale_(self.scale, self._good_steps, overflow, 2.0, 0.5, 2000)


@dataclass(frozen=True)
class SGD:
    """The optimizer's settings. They become constants of a captured graph."""

    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4

    def update(self, state: State, loss_scale: LossScale) -> None:
        """Train all parameters by the state's gradients, unless one of them overflowed."""
        B = 4096 if state.device.type != "cpu" else 1 << 20
        n, m = state.weights.numel(), state.vectors.numel()
        if loss_scale.wanted:
            torch.reciprocal(loss_scale.scale, out=loss_scale.inverse)
            for gradients in (state.half_gradients, state.vector_gradients):
                grid = (triton.cdiv(gradients.numel(), B),)
                find_overflow_kernel[grid](
                    gradients, state.overflow, gradients.numel(), B, num_warps=8
                )
        settings = self.lr, self.momentum, self.weight_decay
        shared = state.half_weights, loss_scale.inverse, state.overflow
        sgd_kernel[(triton.cdiv(n, B),)](
            state.weights,
            state.momenta,
            state.half_gradients,
            *shared,
            n,
            *settings,
            B,
            True,
            num_warps=8,
        )
        sgd_kernel[(triton.cdiv(m, B),)](
            state.vectors,
            state.vector_momenta,
            state.vector_gradients,
            *shared,
            m,
            *settings,
            B,
            False,
            num_warps=8,
        )
        loss_scale.update(state.overflow)
